/**
 * The demo as the README shows it: `config/demo` served by a real server, and the committed inputs with the results that a person recognises.
 *
 * One server for the whole file. The models come from the development dependencies through the links in `config/demo`.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { crc32, deflateSync } from 'node:zlib';
import { Client } from '../../src/client/client.ts';
import { readNpy } from '../../src/tensor/npy.ts';
import { launchServer, PROJECT_DIR } from '../support/server.ts';

const INPUTS = path.join(PROJECT_DIR, 'config/demo-inputs');
const CHILD_LIMIT_MS = 60_000;
const SAMPLE_RATE_HZ = 16_000n;
const CONTEXT_SAMPLES = 64;
const WINDOW_SAMPLES = 512;

let client: Client | undefined;
after(() => client?.close());
const server = launchServer({ after }, { repository: path.join(PROJECT_DIR, 'config/demo') });

before(async () => {
  await server.ready();
  client = new Client(server.url);
});

/** Standard output of a program of the project that ends with 0. */
async function outputOf(program: string, ...args: string[]): Promise<string> {
  const options = { cwd: PROJECT_DIR, timeout: CHILD_LIMIT_MS };
  const { stdout } = await promisify(execFile)(process.execPath, [program, ...args], options);
  return stdout;
}

/** A committed array of FP32. */
function floats(name: string): { shape: readonly number[]; data: Float32Array } {
  const { datatype, shape, data } = readNpy(readFileSync(path.join(INPUTS, name)));
  assert.equal(datatype, 'FP32', name);
  return { shape, data: new Float32Array(Uint8Array.from(data).buffer) };
}

/** Probability of speech, and the state to go on with. */
async function hear(samples: Float32Array, state: Float32Array): Promise<{ speech: number; state: Float32Array }> {
  const result = await client!.infer('silero_vad', {
    inputs: [
      { name: 'input', datatype: 'FP32', shape: [1, samples.length], data: samples },
      { name: 'state', datatype: 'FP32', shape: [2, 1, 128], data: state },
      { name: 'sr', datatype: 'INT64', shape: [], data: [SAMPLE_RATE_HZ] },
    ],
  });
  return { speech: result.output('output', 'FP32').data[0]!, state: result.output('stateN', 'FP32').data };
}

/** The probability of speech that a committed JSON body is answered with. */
async function answerTo(name: string): Promise<number> {
  const response = await fetch(`${server.url}/v2/models/silero_vad/infer`, {
    method: 'POST',
    body: readFileSync(path.join(INPUTS, name)),
    signal: AbortSignal.timeout(CHILD_LIMIT_MS),
  });
  assert.equal(response.status, 200);
  const { outputs } = (await response.json()) as { outputs: { name: string; shape: number[]; data: number[] }[] };
  assert.deepEqual(
    outputs.map(({ name, shape }) => ({ name, shape })),
    [{ name: 'output', shape: [1, 1] }],
  );
  return outputs[0]!.data[0]!;
}

/** Both classes' probabilities for pictures of `rows` lines. */
async function classify(rows: number, data: Float32Array): Promise<Float32Array> {
  const result = await client!.infer('ocr_classifier', {
    inputs: [{ name: 'x', datatype: 'FP32', shape: [rows, 3, 48, 192], data }],
  });
  return result.output('softmax_0.tmp_0', 'FP32').data;
}

test('all three models of the demo are ready', async () => {
  for (const model of ['ocr_classifier', 'ocr_recognizer', 'silero_vad']) {
    assert.equal(await client!.modelReady(model), true, model);
  }
  assert.deepEqual(await client!.health(), { live: true, ready: true });
});

test('the picture of a line of text is read to the letter', async () => {
  assert.equal(await outputOf('config/demo-inputs/read-line.mjs', server.url), 'No request is lost.\n');
});

test('infer tells a line that stands upright from one that stands on its head', async () => {
  for (const [name, answer] of [
    ['line.cls.npy', /INDEX .*\n +0 +(?:1|0\.9999\d*) +0°\n +1 .* 180°\n/],
    ['line-upside-down.cls.npy', /INDEX .*\n +1 +(?:1|0\.9999\d*) +180°\n +0 .* 0°\n/],
  ] as const) {
    const labels = ['--top', '2', '--labels', 'config/demo-inputs/angles.txt'];
    const input = ['--input', `config/demo-inputs/${name}`];
    assert.match(
      await outputOf('bin/serve', 'infer', 'ocr_classifier', '--url', server.url, ...input, ...labels),
      answer,
    );
  }
});

test('two lines in one request are classified like each of them alone', async () => {
  const upright = floats('line.cls.npy').data;
  const upsideDown = floats('line-upside-down.cls.npy').data;
  const alone = [...(await classify(1, upright)), ...(await classify(1, upsideDown))];
  const together = await classify(2, Float32Array.of(...upright, ...upsideDown));
  assert.equal(together.length, 4);
  for (const [i, value] of together.entries()) {
    assert(
      Math.abs(value - alone[i]!) <= 1e-6 * Math.abs(alone[i]!),
      `${value} beside another line, ${alone[i]} alone`,
    );
  }
});

test('the JSON bodies for curl tell speech from noise, like the same samples in binary', async () => {
  const { data: state } = floats('vad-state.npy');
  const speech = await answerTo('speech.json');
  const noise = await answerTo('noise.json');
  assert(speech > 0.8, `speech: ${speech}`);
  assert(noise < 0.1, `noise: ${noise}`);
  assert.equal(Math.fround(speech), (await hear(floats('speech.npy').data, state)).speech);
  assert.equal(Math.fround(noise), (await hear(floats('noise.npy').data, state)).speech);
});

test('a recording heard window by window, with the state of one answer in the next request, is speech throughout', async () => {
  const wav = readFileSync(path.join(INPUTS, 'speech.wav'));
  const samplesAt = wav.indexOf('data') + 8;
  const sampleCount = (wav.length - samplesAt) / 2;
  // Silence in the place of what came before the recording.
  const samples = new Float32Array(CONTEXT_SAMPLES + sampleCount);
  for (let i = 0; i < sampleCount; i++) samples[CONTEXT_SAMPLES + i] = wav.readInt16LE(samplesAt + 2 * i) / 32_768;
  let state: Float32Array = new Float32Array(256);
  let sum = 0;
  let windows = 0;
  for (let at = 0; at + CONTEXT_SAMPLES + WINDOW_SAMPLES <= samples.length; at += WINDOW_SAMPLES) {
    const heard = await hear(samples.slice(at, at + CONTEXT_SAMPLES + WINDOW_SAMPLES), state);
    state = heard.state;
    sum += heard.speech;
    windows++;
  }
  assert.equal(windows, 31);
  // Without the state, the mean is 0.51.
  assert(sum / windows > 0.9, `mean probability ${sum / windows}`);
});

/** A picture sent to `ocr_line` as curl sends it. */
async function read(picture: Uint8Array): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${server.url}/v2/models/ocr_line/infer`, {
    method: 'POST',
    headers: { 'Content-Type': 'image/png' },
    body: picture,
    signal: AbortSignal.timeout(CHILD_LIMIT_MS),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

test('a picture of a line of text is answered with the text, alone and beside others', async () => {
  const picture = readFileSync(path.join(INPUTS, 'line.png'));
  for (const { status, body } of await Promise.all([read(picture), read(picture), read(picture)])) {
    assert.equal(status, 200, JSON.stringify(body));
    assert.deepEqual(body.outputs, [
      { name: 'softmax_11.tmp_0', datatype: 'BYTES', shape: [1], data: ['No request is lost.'] },
    ]);
  }
});

test('pictures that cannot be read are the client’s fault, and say why', async () => {
  const picture = readFileSync(path.join(INPUTS, 'line.png'));
  const huge = Buffer.from(picture);
  huge.writeUInt32BE(2 ** 31 - 1, 16);
  huge.writeUInt32BE(crc32(huge.subarray(12, 29)), 29);
  const bomb = Buffer.concat([
    picture.subarray(0, 33),
    idat(deflateSync(Buffer.alloc(50_000_000))),
    picture.subarray(-12),
  ]);
  for (const [bytes, message] of [
    [picture.subarray(0, 1000), 'the picture ends before its end'],
    [huge, /^the picture has 2147483647 × 47 pixels; at most/],
    [bomb, 'the picture holds more pixels than it says'],
    [Buffer.from('GIF89a'), 'the picture is no PNG file'],
    [Buffer.alloc(0), 'the picture is no PNG file'],
  ] as const) {
    const { status, body } = await read(bytes);
    assert.deepEqual([status, body.code], [400, 'BAD_TENSOR'], JSON.stringify(body));
    if (typeof message === 'string') assert.equal(body.error, message);
    else assert.match(String(body.error), message);
  }
  assert.equal((await read(picture)).status, 200);
});

function idat(data: Uint8Array): Buffer {
  const chunk = Buffer.alloc(data.length + 12);
  chunk.writeUInt32BE(data.length);
  chunk.write('IDAT', 4, 'latin1');
  chunk.set(data, 8);
  chunk.writeUInt32BE(crc32(chunk.subarray(4, -4)), data.length + 8);
  return chunk;
}
