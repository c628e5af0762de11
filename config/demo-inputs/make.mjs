/**
 * Makes every input of the demo anew, into this folder: a picture of a line of text and a second of speech, then the tensors cut from them.
 *
 * Needs ImageMagick (`convert`), the font DejaVu Serif, espeak-ng and sox, all of them Debian packages. Nothing else of the project uses this
 * script: its results are committed. Pixels and samples may differ in the last bit from one version of those programs to another.
 *
 * Preprocessing: pictures as in PaddleOCR's predict_rec and predict_cls (height 48, planes blue, green, red, values (v / 255 − 0.5) / 0.5, zeros
 * to the right); sound as Silero VAD 5 wants it at 16 kHz (64 samples that came before, then 512 new ones).
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';

const TEXT = 'No request is lost.';
const LINE_HEIGHT = 48;
const RECOGNIZER_WIDTH_MIN = 320;
const CLASSIFIER_WIDTH = 192;
const SAMPLE_RATE_HZ = 16_000;
const WINDOW_SAMPLES = 512;
const CONTEXT_SAMPLES = 64;
/** The window that starts 608 ms in, within a vowel: speech even to a model that has heard nothing before it. */
const SPEECH_WINDOW = 19;
const NOISE_AMPLITUDE = 0.05;

const path = (name) => new URL(name, import.meta.url).pathname;
const run = (program, ...args) => execFileSync(program, args, { maxBuffer: 16 << 20 });

/** Writes an array as .npy, format 1.0: `dtype` is numpy's descriptor, `shape` row-major. */
function writeNpy(name, dtype, shape, values) {
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(', ')})`;
  const fields = `{'descr': '${dtype}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const header = `${fields.padEnd(Math.ceil((fields.length + 11) / 64) * 64 - 11)}\n`;
  const prefix = Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  const data = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  writeFileSync(path(name), Buffer.concat([prefix, Buffer.from(header, 'latin1'), data]));
}

/** The picture turned by `degrees` and scaled to `geometry` (ImageMagick's form), as planes [3, 48, width ≥ widthMin]. */
function planes(degrees, geometry, widthMin) {
  const rgb = run('convert', path('line.png'), '-rotate', degrees, '-resize', geometry, '-depth', '8', 'rgb:-');
  const pictureWidth = rgb.length / 3 / LINE_HEIGHT;
  const width = Math.max(pictureWidth, widthMin);
  const values = new Float32Array(3 * LINE_HEIGHT * width);
  for (let plane = 0; plane < 3; plane++) {
    for (let y = 0; y < LINE_HEIGHT; y++) {
      for (let x = 0; x < pictureWidth; x++) {
        const byte = rgb[(y * pictureWidth + x) * 3 + (2 - plane)];
        values[(plane * LINE_HEIGHT + y) * width + x] = (byte / 255 - 0.5) / 0.5;
      }
    }
  }
  return { values, shape: [1, 3, LINE_HEIGHT, width] };
}

function makeLine() {
  const look = ['-background', 'white', '-fill', 'black', '-font', 'DejaVu-Serif', '-pointsize', '30'];
  run('convert', ...look, `label:${TEXT}`, '-bordercolor', 'white', '-border', '10x5', '-depth', '8', path('line.png'));
  const squeezed = `${CLASSIFIER_WIDTH}x${LINE_HEIGHT}!`;
  const tensors = {
    'line.npy': planes('0', `x${LINE_HEIGHT}`, RECOGNIZER_WIDTH_MIN),
    'line.cls.npy': planes('0', squeezed, CLASSIFIER_WIDTH),
    'line-upside-down.cls.npy': planes('180', squeezed, CLASSIFIER_WIDTH),
  };
  for (const [name, { shape, values }] of Object.entries(tensors)) writeNpy(name, '<f4', shape, values);
}

/** The shortest decimal that reads back as the same 32-bit float. */
function shortest(value) {
  let digits = 1;
  while (Math.fround(Number(value.toPrecision(digits))) !== value) digits++;
  return Number(value.toPrecision(digits));
}

/** One window of sound as .npy and as the JSON body of a whole request with a zero state. */
function writeWindow(name, samples) {
  writeNpy(`${name}.npy`, '<f4', [1, samples.length], samples);
  const body = {
    inputs: [
      { name: 'input', datatype: 'FP32', shape: [1, samples.length], data: Array.from(samples, shortest) },
      { name: 'state', datatype: 'FP32', shape: [2, 1, 128], data: new Array(256).fill(0) },
      { name: 'sr', datatype: 'INT64', shape: [], data: [SAMPLE_RATE_HZ] },
    ],
    outputs: [{ name: 'output' }],
  };
  writeFileSync(path(`${name}.json`), JSON.stringify(body));
}

function makeSound() {
  const spoken = path('speech.tmp.wav');
  run('espeak-ng', '-v', 'en-us', '-s', '205', '-w', spoken, TEXT);
  const effects = 'norm -3 silence 1 0.01 0.5% reverse silence 1 0.01 0.5% reverse trim 0 1'.split(' ');
  run('sox', '-D', spoken, '-r', `${SAMPLE_RATE_HZ}`, '-b', '16', path('speech.wav'), ...effects);
  rmSync(spoken);

  const wav = readFileSync(path('speech.wav'));
  const samplesAt = wav.indexOf('data') + 8;
  const at = samplesAt + 2 * (SPEECH_WINDOW * WINDOW_SAMPLES - CONTEXT_SAMPLES);
  const speech = new Float32Array(CONTEXT_SAMPLES + WINDOW_SAMPLES);
  for (let i = 0; i < speech.length; i++) speech[i] = wav.readInt16LE(at + 2 * i) / 32_768;
  writeWindow('speech', speech);

  // A linear congruential generator (Numerical Recipes' constants): the same noise each time.
  let seed = 1;
  const noise = new Float32Array(speech.length);
  for (let i = 0; i < noise.length; i++) {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    noise[i] = (seed / 2 ** 31 - 1) * NOISE_AMPLITUDE;
  }
  writeWindow('noise', noise);
  writeNpy('vad-state.npy', '<f4', [2, 1, 128], new Float32Array(256));
  writeNpy('vad-rate.npy', '<i8', [], BigInt64Array.of(BigInt(SAMPLE_RATE_HZ)));
}

makeLine();
makeSound();
