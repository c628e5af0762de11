import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Cells } from '../../../src/runtime/cells.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import type { Runner, TensorValue } from '../../../src/runtime/runner.ts';
import { sampleInputs } from '../../support/fixture.ts';
import { idOf } from '../../support/fixtures-elementwise.ts';
import { LOOKUP_ROWS } from '../../support/fixtures-shapes.ts';
import { FIXTURE_NAMES, fixture } from '../../support/models.ts';
import { Random } from '../../support/random.ts';
import { assertSameTensor, assertSameTensors, type TestTensor, tensor } from '../../support/tensor.ts';
import { open } from './models.ts';
import { makeValue, readValue, runOnce } from './values.ts';

const SEED = 20_240_611;

for (const name of FIXTURE_NAMES.filter((name) => fixture(name).reference !== undefined)) {
  test(`${name} gives the reference's outputs, bit for bit (seed ${SEED})`, (t) => {
    const { runner, session } = open(t, name);
    const model = fixture(name);
    const random = new Random(SEED);
    for (const rows of [1, 3, 5]) {
      const inputs = sampleInputs(model, random, rows);
      // The inputs of these two must agree in their variable dimension.
      if (name === 'recurrent') inputs.set('state', model.sample!(random, model.inputs[1]!, [2, rows, 4])!);
      assertSameTensors(runOnce(runner, session.signature, inputs), model.reference!(inputs));
    }
  });
}

test('a result goes straight to the memory that is given for it', (t) => {
  const { runner } = open(t, 'simple');
  const a = makeValue(
    runner,
    tensor(
      'INT32',
      [2, 16],
      Int32Array.from({ length: 32 }, (_, i) => i),
    ),
  );
  const b = makeValue(runner, tensor('INT32', [2, 16], new Int32Array(32).fill(100)));
  const target = new Cells(16);
  const value = runner.tensorOver('INT32', target.address, 128, [2, 16]);
  runner.run([a.value, b.value], [1], [value]);
  const got = new Int32Array(target.bytes.buffer);
  assert.deepEqual([...got], [...Array.from({ length: 32 }, (_, i) => i - 100)]);
  for (const used of [a.value, b.value, value]) runner.release(used);
});

test('only the wanted outputs are computed, in the order asked for', (t) => {
  const { runner } = open(t, 'simple');
  const a = makeValue(runner, tensor('INT32', [1, 16], new Int32Array(16).fill(7)));
  const b = makeValue(runner, tensor('INT32', [1, 16], new Int32Array(16).fill(5)));
  const outputs: (TensorValue | undefined)[] = [undefined, undefined];
  runner.run([a.value, b.value], [1, 0], outputs);
  assert.equal(readValue(runner, outputs[0]!).data[0], 2);
  assert.equal(readValue(runner, outputs[1]!).data[0], 12);
  for (const used of [a.value, b.value, ...outputs]) runner.release(used!);
});

const identity = (runner: Runner, source: TestTensor): TestTensor => {
  const input = makeValue(runner, source);
  const outputs: (TensorValue | undefined)[] = [undefined];
  runner.run([input.value], [0], outputs);
  try {
    return readValue(runner, outputs[0]!);
  } finally {
    runner.release(input.value);
    runner.release(outputs[0]!);
  }
};

test('strings keep every byte: zero bytes, bytes that are not UTF-8, none at all, and many', (t) => {
  const { runner } = open(t, idOf('BYTES'));
  const elements = [
    Uint8Array.of(0x61, 0x62, 0x63, 0, 0x64, 0x65, 0x66),
    new Uint8Array(0),
    Uint8Array.of(0xff, 0xfe, 0x41),
    Buffer.from('é大😀'),
    Uint8Array.of(0),
    new Uint8Array(100_000).fill(0xe9),
  ];
  const source = tensor('BYTES', [6], elements);
  assertSameTensor(identity(runner, source), source);
});

test('random strings of random lengths keep their bytes and places', (t) => {
  const { runner } = open(t, 'idB');
  const random = new Random(SEED);
  for (let round = 0; round < 20; round++) {
    const shape = [random.int(0, 4), random.int(0, 40)];
    const elements = Array.from({ length: shape[0]! * shape[1]! }, () => random.bytes(random.int(0, 60)));
    const source = tensor('BYTES', shape, elements);
    assertSameTensor(identity(runner, source), source);
  }
});

test('a string that is set again is replaced', (t) => {
  const { runner } = open(t, idOf('BYTES'));
  const value = runner.stringTensor([2]);
  runner.setString(value, 0, Buffer.from('a long string, longer than one that lies within its object'));
  runner.setString(value, 1, Buffer.from('b'));
  runner.setString(value, 0, Buffer.from('a'));
  assert.equal(runner.stringsByteLength(value), 10);
  const bytes = new Uint8Array(10);
  runner.readStrings(value, bytes);
  assert.deepEqual([...bytes], [1, 0, 0, 0, 0x61, 1, 0, 0, 0, 0x62]);
  runner.release(value);
});

test('tensors without elements need no memory', (t) => {
  const { runner } = open(t, 'simple');
  const empty = runner.tensorOver('INT32', 0, 0, [0, 16]);
  const other = runner.tensorOver('INT32', 0, 0, [0, 16]);
  const outputs: (TensorValue | undefined)[] = [undefined, runner.tensorOver('INT32', 0, 0, [0, 16])];
  runner.run([empty, other], [0, 1], outputs);
  for (const value of outputs) {
    assert.deepEqual(runner.describe(value!), {
      datatype: 'INT32',
      shape: [0, 16],
      address: 0,
      byteLength: 0,
      isTensor: true,
    });
    runner.readElements(value!, new Uint8Array(0));
  }
  for (const value of [empty, other, ...outputs]) runner.release(value!);
});

test('a scalar has the shape [] and one element', (t) => {
  const { runner, session } = open(t, 'scalar');
  const outputs = runOnce(
    runner,
    session.signature,
    new Map([
      ['x', tensor('FP32', [2], Float32Array.of(1, 2))],
      ['factor', tensor('FP32', [], Float32Array.of(3))],
    ]),
  );
  assertSameTensor(outputs.get('y'), tensor('FP32', [2], Float32Array.of(3, 6)));
  assertSameTensor(outputs.get('factor_out'), tensor('FP32', [], Float32Array.of(3)));
});

test('half floats keep their bits: infinity, NaN and the least number', (t) => {
  const bits = Uint16Array.of(0x3c00, 0x7c00, 0x7e00, 0x0001);
  for (const datatype of ['FP16', 'BF16'] as const) {
    const { runner } = open(t, idOf(datatype));
    const source = tensor(datatype, [4], bits);
    assertSameTensor(identity(runner, source), source);
  }
});

test('a failed run is an error, leaves the outputs as they were, and the next run works', (t) => {
  const { runner } = open(t, 'lookup');
  const bad = makeValue(runner, tensor('INT64', [2], BigInt64Array.of(0n, BigInt(LOOKUP_ROWS))));
  const good = makeValue(runner, tensor('INT64', [2], BigInt64Array.of(0n, 1n)));
  const outputs: (TensorValue | undefined)[] = [undefined];
  assert.throws(() => runner.run([bad.value], [0], outputs), OrtError);
  assert.deepEqual(outputs, [undefined]);
  runner.run([good.value], [0], outputs);
  assert.deepEqual([...readValue(runner, outputs[0]!).data], [0, 1, 2, 3, 4, 5, 6, 7]);
  for (const value of [bad.value, good.value, outputs[0]!]) runner.release(value);
});

test('memory given for an output of another shape is an error', (t) => {
  const { runner } = open(t, 'simple');
  const inputs = [0, 1].map(() => makeValue(runner, tensor('INT32', [1, 16], new Int32Array(16))));
  const target = new Cells(16);
  const value = runner.tensorOver('INT32', target.address, 128, [2, 16]);
  assert.throws(
    () =>
      runner.run(
        inputs.map((input) => input.value),
        [0],
        [value],
      ),
    OrtError,
  );
  for (const used of [...inputs.map((input) => input.value), value]) runner.release(used);
});

test('memory too small for the shape is refused', (t) => {
  const { runner } = open(t, 'simple');
  const memory = new Cells(8);
  assert.throws(() => runner.tensorOver('INT32', memory.address, 60, [1, 16]), OrtError);
});

test('another number of inputs or outputs than the session has is a bug', (t) => {
  const { runner } = open(t, 'simple');
  assert.throws(() => runner.run([], [0], [undefined]), /bug/);
  const inputs = [0, 1].map(() => makeValue(runner, tensor('INT32', [1, 16], new Int32Array(16))).value);
  assert.throws(() => runner.run(inputs, [0, 1], [undefined]), /bug/);
  assert.throws(() => runner.run(inputs, [0, 1, 0], [undefined, undefined, undefined]), /bug/);
  assert.throws(() => runner.run(inputs, [2], [undefined]), /bug/);
  for (const value of inputs) runner.release(value);
});

test('a cancelled runner fails its runs until it is reset', async (t) => {
  const { cancelRun } = await import('../../../src/runtime/runner.ts');
  const { runner } = open(t, 'slow');
  const source = tensor('INT64', [1, 1], BigInt64Array.of(2n));
  cancelRun(runner.cancelToken);
  assert.throws(() => identity(runner, source), OrtError);
  runner.resetCancel();
  assertSameTensor(identity(runner, source), source);
});

test('a runner may be disposed twice', (t) => {
  const { runner } = open(t, 'simple');
  runner.dispose();
  runner.dispose();
});
