/** `inspect`: what a model file says of itself, with ONNX Runtime as the judge. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { buildModels } from '../../support/models.ts';
import { capture } from './capture.ts';

const cwd = mkdtempSync(join(tmpdir(), 'batchport-inspect-'));
before(() => buildModels(cwd, ['simple', 'scalar', 'zipmap', 'odd_names']));
after(() => rmSync(cwd, { recursive: true }));

const inspect = (...args: string[]) => capture(['inspect', ...args], { cwd });

test('size, checksum, metadata, inputs and outputs are shown with symbolic names', async () => {
  const { exitCode, out } = await inspect('simple.onnx');
  const file = readFileSync(join(cwd, 'simple.onnx'));
  assert.equal(exitCode, 0);
  assert.match(out, new RegExp(`^size +${file.length} bytes$`, 'm'));
  assert.match(out, new RegExp(`^sha256 +${createHash('sha256').update(file).digest('hex')}$`, 'm'));
  assert.match(out, /^producer +batchport tests$/m);
  assert.match(out, /^metadata über +größe$/m);
  assert.match(out, /^batchable +yes: /m);
  assert.match(out, /^inputs\n {2}NAME +DATATYPE +SHAPE\n {2}INPUT0 +INT32 +\[N,16\]\n {2}INPUT1 /m);
  assert.match(out, /^outputs\n {2}NAME +DATATYPE +SHAPE\n {2}OUTPUT0 +INT32 +\[N,16\]\n/m);
});

test('--json has the same for programs', async () => {
  const { out } = await inspect('simple.onnx', '--json');
  const report = JSON.parse(out);
  assert.deepEqual(report.inputs[0], { name: 'INPUT0', datatype: 'INT32', shape: [-1, 16], symbols: ['N', ''] });
  assert.equal(report.size_bytes, readFileSync(join(cwd, 'simple.onnx')).length);
  assert.deepEqual([report.batching.batchable, report.batching.proven], [true, true]);
});

test('a model that cannot be batched says why', async () => {
  assert.match((await inspect('scalar.onnx')).out, /^batchable +no: .*"factor" is a scalar/m);
});

test('an output that the protocol cannot carry is listed with the reason', async () => {
  assert.match((await inspect('zipmap.onnx')).out, /^ {2}output_probability +not served +sequence$/m);
});

test('names that mean something to JavaScript are names like any other', async () => {
  const { out } = await inspect('odd_names.onnx', '--json');
  const names = JSON.parse(out).inputs.map(({ name }: { name: string }) => name);
  assert.deepEqual(names, ['__proto__', 'constructor', 'my input', 'x.tmp_0']);
});

test("a file that is no model ends with 4 and ONNX Runtime's reason in one line", async () => {
  writeFileSync(join(cwd, 'cut.onnx'), readFileSync(join(cwd, 'simple.onnx')).subarray(0, 100));
  const { exitCode, out, err } = await inspect('cut.onnx');
  assert.deepEqual([exitCode, out], [4, '']);
  assert.match(err, /^error: cut\.onnx cannot be loaded: .*Protobuf parsing failed\.\n$/);
});
