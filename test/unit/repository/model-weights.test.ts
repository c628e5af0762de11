import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { findWeights, fingerprint } from '../../../src/repository/model-weights.ts';
import { EXTERNAL_FILE } from '../../support/fixtures-compute.ts';
import { modelFiles, writeModel } from '../../support/models.ts';
import { declare, encodeModel, externalConstant, node, spec } from '../../support/onnx.ts';
import { seedFromEnv } from '../../support/random.ts';
import { temporaryDirectory } from '../../support/repository.ts';

/** A model whose constants lie in files beside it, one of them used inside the body of a loop. */
function spreadModel(t: TestContext, sizes: Readonly<Record<string, number>>, length?: number) {
  const dir = temporaryDirectory(t, 'weights');
  for (const [name, bytes] of Object.entries(sizes)) fs.writeFileSync(path.join(dir, name), Buffer.alloc(bytes, name));
  const external = (name: string, location: string, bytes: number) =>
    externalConstant(name, 'FP32', [bytes / 4], { location, offset: 0, length: bytes });
  const model = encodeModel({
    nodes: [
      node('Loop', ['count', '', 'x'], ['y'], {
        body: {
          graph: {
            nodes: [node('Add', ['carried', 'inner'], ['next']), node('Identity', ['condition'], ['goOn'])],
            constants: [external('inner', 'inner.bin', length ?? sizes['inner.bin']!)],
            inputs: [spec('step', 'INT64', []), spec('condition', 'BOOL', []), spec('carried', 'FP32', [1])].map(
              declare,
            ),
            outputs: [spec('goOn', 'BOOL', []), spec('next', 'FP32', [1])].map(declare),
          },
        },
      }),
    ],
    constants: [external('outer', 'outer.bin', sizes['outer.bin']!), external('away', '../away.bin', 4000)],
    inputs: [spec('x', 'FP32', [1]), spec('count', 'INT64', [])].map(declare),
    outputs: [spec('y', 'FP32', [1])].map(declare),
  });
  const file = path.join(dir, 'model.onnx');
  fs.writeFileSync(file, model);
  return { dir, file, modelBytes: model.length };
}

test('weights inside the file and in files beside it are counted, those of inner graphs too, those elsewhere not', async (t) => {
  const { dir, file, modelBytes } = spreadModel(t, { 'inner.bin': 40_000, 'outer.bin': 400_000 });
  const { bytes, files } = await findWeights(file);
  assert.equal(bytes, modelBytes + 440_000);
  assert.deepEqual(
    new Set(files),
    new Set(['model.onnx', 'inner.bin', 'outer.bin'].map((name) => path.join(dir, name))),
  );
});

// Story: a named pipe in the place of weights was waited for, for ever, and nobody on the host could load anything meanwhile.
test('a named pipe or a directory in the place of weights is counted as nothing, and not waited for', async (t) => {
  const { dir, file, modelBytes } = spreadModel(t, { 'inner.bin': 40_000, 'outer.bin': 4 });
  for (const name of ['inner.bin', 'outer.bin']) fs.rmSync(path.join(dir, name));
  execFileSync('mkfifo', [path.join(dir, 'inner.bin')]);
  fs.mkdirSync(path.join(dir, 'outer.bin'));
  const { bytes, files } = await findWeights(file);
  assert.equal(bytes, modelBytes);
  await fingerprint(files.filter((name) => !name.endsWith('outer.bin')));
  await assert.rejects(fingerprint(files), /EISDIR/);
});

test('a part of a file counts as that part', async (t) => {
  const { file, modelBytes } = spreadModel(t, { 'inner.bin': 40_000, 'outer.bin': 400_000 }, 8000);
  assert.equal((await findWeights(file)).bytes, modelBytes + 408_000);
});

test('a missing file beside the model is not counted, nor is what is no model', async (t) => {
  const { dir, file, modelBytes } = spreadModel(t, { 'inner.bin': 40_000, 'outer.bin': 4 });
  fs.rmSync(path.join(dir, 'outer.bin'));
  assert.equal((await findWeights(file)).bytes, modelBytes + 40_000);
  const random = seedFromEnv();
  const model = Buffer.from(modelFiles('mlp').model);
  for (let n = 0; n < 50; n++) {
    const broken = Buffer.from(model);
    for (let hits = random.int(1, 8); hits > 0; hits--) broken[random.int(0, 200)] = random.int(0, 255);
    fs.writeFileSync(file, broken);
    assert((await findWeights(file)).bytes >= broken.length);
  }
  await assert.rejects(findWeights(path.join(dir, 'none.onnx')), /ENOENT/);
});

// Story: zeros read as millions of empty fields, and each was waited for: a file of 20 MiB kept the server busy for half a minute.
test('a file of zeros, or of millions of fields, is soon given up', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const file = path.join(dir, 'model.onnx');
  fs.writeFileSync(file, '');
  fs.truncateSync(file, 2 ** 40);
  assert.equal((await findWeights(file)).bytes, 2 ** 40);
  const fields = Buffer.alloc(16 * 2 ** 20, Buffer.of(0x08, 0x01));
  fs.writeFileSync(file, fields);
  const before = process.cpuUsage();
  assert.equal((await findWeights(file)).bytes, fields.length);
  const { user } = process.cpuUsage(before);
  t.diagnostic(`${Math.round(user / 1000)} ms of processor time`);
  assert(user < 5_000_000, 'in microseconds; it was thirty seconds');
});

test('large weights are skipped, not read', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const file = writeModel(dir, 'mlp_big');
  const before = process.resourceUsage().maxRSS;
  assert.equal((await findWeights(file)).bytes, fs.statSync(file).size);
  assert(process.resourceUsage().maxRSS - before < 8 * 1024, 'in KiB');
});

test('a fingerprint is the same for the same files under any name, and another for a change', async (t) => {
  const dir = temporaryDirectory(t, 'weights');
  const one = writeModel(path.join(dir, 'a'), 'external');
  const same = writeModel(path.join(dir, 'b'), 'external', 'model.onnx');
  const print = async (file: string) => fingerprint((await findWeights(file)).files);
  assert.equal(await print(one), await print(same));
  const side = path.join(dir, 'b', EXTERNAL_FILE);
  const bytes = fs.readFileSync(side);
  bytes[5]! ^= 1;
  fs.writeFileSync(side, bytes);
  assert.notEqual(await print(one), await print(same));
  const big = writeModel(dir, 'mlp_big');
  const before = await print(big);
  fs.appendFileSync(big, 'x');
  assert.notEqual(await print(big), before);
});
