/** `infer` against a small server of the protocol that answers with the rows it got, doubled. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { readNpy, writeNpy } from '../../../src/tensor/npy.ts';
import { capture } from './capture.ts';

const cwd = mkdtempSync(join(tmpdir(), 'batchport-infer-'));
const paths: string[] = [];
let url = '';

const metadata = {
  name: 'double',
  versions: ['1', '2'],
  platform: 'onnx',
  inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 3] }],
  outputs: [{ name: 'y', datatype: 'FP32', shape: [-1, 3] }],
};

const server = createServer(async (request, response) => {
  paths.push(`${request.method} ${request.url}`);
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  const answer = (status: number, body: unknown) => {
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  };
  const path = request.url ?? '';
  if (path.endsWith('/infer')) {
    const body = Buffer.concat(parts);
    const jsonBytes = Number(request.headers['inference-header-content-length']);
    const { inputs } = JSON.parse(body.toString('utf8', 0, jsonBytes)) as { inputs: { shape: number[] }[] };
    const { shape } = inputs[0]!;
    if (shape.length !== 2) return answer(400, { error: `shape is ${shape}`, code: 'BAD_TENSOR' });
    const values = new Float32Array(Uint8Array.from(body.subarray(jsonBytes)).buffer);
    const data = [...values].map((value) => 2 * value);
    const version = path.includes('/versions/2/') ? '2' : '1';
    const outputs = [{ name: 'y', datatype: 'FP32', shape, data }];
    return answer(200, { model_name: 'double', model_version: version, outputs });
  }
  if (/^\/v2\/models\/double(\/versions\/[12])?$/.test(path)) return answer(200, metadata);
  if (path === '/v2/models/loading') return answer(503, { error: 'loading', code: 'NOT_READY' });
  return answer(404, { error: `unknown model\x1b[2J`, code: 'MODEL_NOT_FOUND' });
});

before(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

after(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  rmSync(cwd, { recursive: true });
});

const infer = (...args: string[]) => capture(['infer', ...args, '--url', url], { cwd });

test('the answer is printed as a table', async () => {
  assert.deepEqual(await infer('double', '--input', '[[1, 2, 3], [0.5, 0, -1]]'), {
    exitCode: 0,
    out: 'y  FP32 [2,3]\n  [0]  2  4   6\n  [1]  1  0  -2\n',
    err: '',
  });
});

test('--top prints the largest values with their labels', async () => {
  writeFileSync(join(cwd, 'labels.txt'), 'ant\nbee\r\ncat\n');
  const { out, err } = await infer('double', '-i', 'x=[[1, 3, 2]]', '--top', '2', '--labels', 'labels.txt');
  assert.equal(out, 'y  FP32 [1,3]\n  INDEX  VALUE  LABEL\n      1      6  bee\n      2      4  cat\n');
  assert.equal(err, '');
  writeFileSync(join(cwd, 'labels.txt'), 'ant\n');
  const other = await infer('double', '-i', 'x=[[1, 3, 2]]', '--top', '1', '--labels', 'labels.txt');
  assert.equal(other.err, 'warning: 1 labels for the 3 classes of y\n');
  assert.match(other.out, / {6}1 {6}6 {2}-\n/);
});

test('--json prints the exact values', async () => {
  const { out } = await infer('double', '-i', '[[0.1, 1e30, 0]]', '--json');
  assert.deepEqual(JSON.parse(out), {
    model_name: 'double',
    model_version: '1',
    outputs: [{ name: 'y', datatype: 'FP32', shape: [1, 3], data: [0.2, 2e30, 0] }],
  });
});

test('--output writes a .npy file, and a .npy file is taken as input', async () => {
  const elements = new Uint8Array(Float32Array.of(1, 2, 3).buffer);
  writeFileSync(join(cwd, 'row.npy'), writeNpy('FP32', [1, 3], elements));
  const result = await infer('double', '-i', 'row.npy', '-o', 'y=out.npy');
  assert.deepEqual(result, { exitCode: 0, out: '', err: 'y  FP32 [1,3] written to out.npy\n' });
  const { datatype, shape, data } = readNpy(readFileSync(join(cwd, 'out.npy')));
  assert.deepEqual([datatype, shape, [...new Float32Array(Uint8Array.from(data).buffer)]], ['FP32', [1, 3], [2, 4, 6]]);
});

test('--model-version asks for that version', async () => {
  paths.length = 0;
  const { out } = await infer('double', '-i', '[[1, 2, 3]]', '--model-version', '2', '--json');
  assert.equal(JSON.parse(out).model_version, '2');
  assert.deepEqual(paths, ['GET /v2/models/double/versions/2', 'POST /v2/models/double/versions/2/infer']);
});

test('an error of the server ends with its code and message, safe to print', async () => {
  const unknown = await infer('none', '-i', '[1]');
  assert.deepEqual(unknown, {
    exitCode: 8,
    out: '',
    err: 'error: the server answered 404 MODEL_NOT_FOUND: unknown model\\x1b[2J\n',
  });
  assert.equal((await infer('loading', '-i', '[1]')).exitCode, 7);
  const shape = await infer('double', '-i', '[[[1]]]');
  assert.deepEqual([shape.exitCode, shape.err], [8, 'error: the server answered 400 BAD_TENSOR: shape is 1,1,1\n']);
});

test('a server that is not there is told with its address', async () => {
  // The discard port, which nothing listens on.
  const { exitCode, err } = await capture(['infer', 'm', '-i', '[1]', '--url', 'http://127.0.0.1:9'], { cwd });
  assert.equal(exitCode, 7);
  assert.match(err, /^error: no answer from http:\/\/127\.0\.0\.1:9: .*\n {7}is the server running\?/);
});

test('without --url, the server of the same environment is asked', async () => {
  const env = { BATCHPORT_HTTP_PORT: new URL(url).port, BATCHPORT_HOST: '0.0.0.0' };
  assert.equal((await capture(['infer', 'double', '-i', '[[1, 2, 3]]'], { cwd, env })).exitCode, 0);
});

test('wrong arguments are refused before anything is inferred', async () => {
  const cases: [string[], RegExp][] = [
    [['double'], /the model also needs x \(FP32 \[-1,3\]\)/],
    [['double', '-i', 'z=[1]'], /the model has no input "z"/],
    [['double', '-i', '[[1,2,3]]', '-o', 'z=a.npy'], /--output z=a\.npy: the model has no output of that name/],
    [['double', '-i', '[[1,2,3]]', '-o', 'a.txt'], /must end in \.npy/],
    [['double', '-i', '[[1,2,3]]', '--top', '0'], /--top: "0" is not a whole number from 1 to 1000/],
    [['double', '-i', '[[1,2,3]]', '--timeout-ms', '1.5'], /--timeout-ms: "1\.5" is not a whole number/],
    [['double', '-i', '[[1,2,3]]', '--labels', 'labels.txt'], /--labels needs --top K/],
    [['double', '-i', '[[1,2,3]]', '--top', '1', '--labels', 'none.txt'], /cannot read none\.txt: ENOENT/],
  ];
  paths.length = 0;
  for (const [args, message] of cases) {
    const { exitCode, out, err } = await infer(...args);
    assert.deepEqual([exitCode, out], [2, ''], args.join(' '));
    assert.match(err, message);
  }
  assert.ok(!paths.some((path) => path.startsWith('POST')));
});

test('a URL of another kind is refused', async () => {
  for (const bad of ['ftp://host', 'http://', 'http://user:secret@host', 'http://host?x=1']) {
    const { exitCode, err } = await capture(['infer', 'm', '-i', '[1]', '--url', bad], { cwd });
    assert.equal(exitCode, 2, bad);
    assert.match(err, /^error: --url: /);
  }
});
