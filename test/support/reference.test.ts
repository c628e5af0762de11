/** The fixtures themselves: other tests believe what they say about their models. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { sampleInputs } from './fixture.ts';
import { buildModels, FIXTURE_NAMES, fixture, modelFiles } from './models.ts';
import { Random, seedFromEnv } from './random.ts';
import { Oracle } from './reference.ts';
import { makeRepository, temporaryDirectory } from './repository.ts';
import {
  assertCloseTensor,
  assertSameTensor,
  assertSameTensors,
  concatRows,
  sliceRows,
  stringTensor,
  type TestTensor,
} from './tensor.ts';

const random = seedFromEnv();

for (const name of FIXTURE_NAMES) {
  const { reference, batchable, inputs } = fixture(name);

  if (reference !== undefined) {
    test(`ONNX Runtime gives what the reference of ${name} says`, (t) => {
      const oracle = Oracle.of(t, name);
      for (const rows of [1, 4]) {
        const sample = sampleInputs(fixture(name), random, rows);
        assertSameTensors(oracle.run(sample), reference(sample));
      }
    });
  }

  if (batchable) {
    test(`rows of ${name} do not depend on one another`, (t) => {
      const oracle = Oracle.of(t, name);
      const sample = sampleInputs(fixture(name), random, 3);
      const whole = oracle.run(sample);
      const parts = [
        [0, 1],
        [1, 3],
      ] as const;
      const results = parts.map(([from, to]) =>
        oracle.run(new Map([...sample].map(([input, value]) => [input, sliceRows(value, from, to)]))),
      );
      for (const [output, expected] of whole) {
        const joined = concatRows(results.map((result) => result.get(output)!));
        assertCloseTensor(joined, expected, 1e-5, output);
      }
      assert(inputs.every(({ shape }) => shape[0] === -1));
    });
  }
}

test('a run of batch_softmax and of reduce_batch does depend on its other rows', (t) => {
  for (const name of ['batch_softmax', 'reduce_batch']) {
    const oracle = Oracle.of(t, name);
    const sample = sampleInputs(fixture(name), random, 2);
    const alone = oracle.run(new Map([...sample].map(([input, value]) => [input, sliceRows(value, 0, 1)]))).get('y')!;
    const together = oracle.run(sample).get('y')!;
    assert.throws(() => assertCloseTensor(sliceRows(together, 0, 1), alone, 1e-5));
  }
});

test('a bad index fails a run of lookup, and the next run is right', (t) => {
  const oracle = Oracle.of(t, 'lookup');
  const index = (...values: bigint[]): ReadonlyMap<string, TestTensor> =>
    new Map([['index', { datatype: 'INT64', shape: [values.length], data: BigInt64Array.from(values) }]]);
  assert.throws(() => oracle.run(index(1n, 8n)), /out of data bounds/);
  const good = index(-8n, 7n);
  assertSameTensors(oracle.run(good), fixture('lookup').reference!(good));
});

test('a fixture is built the same every time, with its side files beside it', (t) => {
  const dir = temporaryDirectory(t, 'models');
  const paths = buildModels(dir, ['external', 'mlp']);
  assert.deepEqual(fs.readdirSync(dir).sort(), ['external.onnx', 'external.onnx_data', 'mlp.onnx']);
  assert.deepEqual(fs.readFileSync(paths.get('mlp')!), Buffer.from(fixture('mlp').build().model));
  assert.notEqual(fixture('mlp').build().model, modelFiles('mlp').model);
  assert.throws(() => fixture('nonsense'), /no fixture named "nonsense"/);
});

test('a repository holds versions and configurations, and goes with its test', async (t) => {
  let dir = '';
  await t.test('inside', (inner) => {
    const models = new Map([
      ['__proto__', { fixture: 'rows' }],
      ['two', { fixture: { 1: 'rows', 10: 'external' }, config: { max_batch_size: 4 } }],
    ]);
    const repository = makeRepository(inner, models);
    dir = repository.dir;
    assert.deepEqual(fs.readdirSync(repository.path('__proto__', '1')), ['model.onnx']);
    assert.deepEqual(fs.readdirSync(repository.path('two', '10')).sort(), ['external.onnx_data', 'model.onnx']);
    assert.deepEqual(JSON.parse(fs.readFileSync(repository.path('two', 'config.json'), 'utf8')), { max_batch_size: 4 });
    repository.remove('two', '1');
    repository.writeFile(['broken', '1', 'model.onnx'], '<html>');
    assert.deepEqual(fs.readdirSync(repository.dir).sort(), ['__proto__', 'broken', 'two']);
  });
  assert.equal(fs.existsSync(path.join(dir)), false);
});

test('comparisons of tensors see a single bit', () => {
  const make = (...values: number[]): TestTensor => ({
    datatype: 'FP32',
    shape: [values.length],
    data: Float32Array.from(values),
  });
  assertSameTensor(make(1, Number.NaN, -0), make(1, Number.NaN, -0));
  assert.throws(() => assertSameTensor(make(0), make(-0)), /element 0: got 0, expected -0/);
  assert.throws(() => assertSameTensor(make(1, 2), make(1, 2.0000002)), /element 1/);
  assert.throws(() => assertSameTensor(undefined, make(1)), /missing/);
  assert.throws(() => assertSameTensor(make(1, 1), { ...make(1, 1), shape: [1, 2] } as TestTensor), /shape/);
  assertCloseTensor(make(1.0000001, Number.NaN), make(1, Number.NaN), 1e-6);
  assert.throws(() => assertCloseTensor(make(1.1), make(1), 1e-6), /element 0/);
  assert.throws(() => assertCloseTensor(make(Number.NaN), make(1), 1), /element 0/);
  assertCloseTensor(make(1e-9), make(2e-9), 1e-6);
  assert.throws(() => assertCloseTensor(make(1e-9), make(2e-9), 1e-6, 'tensor', 0), /element 0/);
  assert.throws(() => assertCloseTensor(stringTensor([1], ['a']), stringTensor([1], ['b']), 1), /element 0/);
});

test('a seed decides everything that follows', () => {
  const draw = (seed: number) => {
    const generator = new Random(seed);
    return [generator.uint32(), generator.float(), generator.int(-5, 5), generator.uint64(), ...generator.bytes(4)];
  };
  assert.deepEqual(draw(7), draw(7));
  assert.notDeepEqual(draw(7), draw(8));
  const counts = new Map<number, number>();
  const generator = new Random(1);
  for (let i = 0; i < 6000; i++) {
    const value = generator.int(1, 6);
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  assert.deepEqual([...counts.keys()].sort(), [1, 2, 3, 4, 5, 6]);
  for (const count of counts.values()) assert(count > 850 && count < 1150, String(count));
});
