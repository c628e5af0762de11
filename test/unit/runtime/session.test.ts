import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { isOutOfMemory } from '../../../src/device/out-of-memory.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import type { TensorValue } from '../../../src/runtime/runner.ts';
import { type LoadOptions, Session, WeightsTooLarge } from '../../../src/runtime/session.ts';
import { BULGE_ROW_BYTES } from '../../support/fixtures-compute.ts';
import { FIXTURE_NAMES, fixture, modelFiles } from '../../support/models.ts';
import { declare, encodeModel, node, spec } from '../../support/onnx.ts';
import { tensor } from '../../support/tensor.ts';
import { CPU, filePath, modelFolder, modelPath, open } from './models.ts';
import { makeValue } from './values.ts';

const BIG = new Set(['mlp_big', 'conv']);

function load<T>(file: string, use: (session: Session) => T, options: LoadOptions = CPU): T {
  const session = Session.load(file, options);
  try {
    return use(session);
  } finally {
    session.release();
  }
}

for (const name of FIXTURE_NAMES.filter((name) => !BIG.has(name))) {
  test(`the signature of ${name} is what its file says`, () => {
    const { inputs, outputs, skippedOutputs = [] } = fixture(name);
    load(modelPath(name), ({ signature }) => {
      assert.deepEqual(signature.inputs, inputs);
      assert.deepEqual(signature.outputs, outputs);
      assert.deepEqual(
        signature.skippedOutputs.map((skipped) => skipped.name),
        skippedOutputs,
      );
    });
  });
}

test('an output that is no tensor is skipped with the reason', () => {
  load(modelPath('zipmap'), ({ signature }) => {
    assert.deepEqual(signature.skippedOutputs, [{ name: 'output_probability', reason: 'sequence' }]);
  });
});

test('an input that is no tensor refuses the model, naming the input', () => {
  const float = { tensorType: { elemType: 1 } };
  const model = encodeModel({
    nodes: [node('SequenceLength', ['my list'], ['length'])],
    inputs: [{ name: 'my list', type: { sequenceType: { elemType: float } } }],
    outputs: [declare(spec('length', 'INT64', []))],
  });
  assert.throws(
    () => Session.load(filePath('sequence-input.onnx', model), CPU),
    (error) =>
      error instanceof BatchportError &&
      error.code === 'NOT_SUPPORTED' &&
      /"my list" is a sequence/.test(error.message),
  );
});

test('metadata of a model is read, with a key named __proto__ like any other', () => {
  const x = spec('x', 'FP32', ['N']);
  const metadata = Object.fromEntries([
    ['__proto__', 'trap'],
    ['labels', 'Katze,Größe'],
    ['empty', ''],
  ]);
  const model = encodeModel(
    { nodes: [node('Identity', ['x'], ['y'])], inputs: [declare(x)], outputs: [declare({ ...x, name: 'y' })] },
    { description: 'copies', metadata },
  );
  load(filePath('metadata.onnx', model), ({ signature }) => {
    const { custom, ...rest } = signature.metadata;
    assert.deepEqual(rest, {
      producer: 'batchport tests',
      graphName: 'main',
      description: 'copies',
      version: '1',
    });
    assert.deepEqual(Object.entries(custom).sort(), Object.entries(metadata).sort());
    assert.equal(Object.getPrototypeOf(custom), Object.prototype);
  });
});

test("a file that is no model is an error with ONNX Runtime's message", () => {
  const whole = modelFiles('simple').model;
  const directory = path.join(modelFolder(), 'directory.onnx');
  mkdirSync(directory, { recursive: true });
  const files: [string, RegExp][] = [
    [filePath('html.onnx', '<html>404</html>'), /Protobuf parsing failed/],
    [
      filePath('lfs.onnx', 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n'),
      /Protobuf parsing failed/,
    ],
    [filePath('cut.onnx', whole.subarray(0, whole.length - 5)), /Protobuf parsing failed|failed/],
    [filePath('empty.onnx', ''), /failed/],
    [path.join(modelFolder(), 'nowhere.onnx'), /doesn't exist/],
    [directory, /directory/],
  ];
  for (const [file, pattern] of files) {
    assert.throws(
      () => Session.load(file, CPU),
      (error) => error instanceof OrtError && error.code > 0 && pattern.test(error.message),
      file,
    );
  }
});

test('a path with a zero byte is refused instead of cut', () => {
  assert.throws(
    () => Session.load(`${modelPath('simple')}\0.png`, CPU),
    (error) => error instanceof BatchportError && error.code === 'BAD_REQUEST',
  );
});

test('weights in a file beside the model are found', () => {
  load(modelPath('external'), ({ signature }) => assert.equal(signature.inputs.length, 1));
});

test("ONNX Runtime's refusal of an option comes through", () => {
  assert.throws(() => Session.load(modelPath('simple'), { ...CPU, sessionConfig: { '': 'x' } }), OrtError);
});

test('a session may be released twice, and has no statistics afterwards', () => {
  const session = Session.load(modelPath('simple'), CPU);
  session.release();
  session.release();
  assert.throws(() => session.allocatorStats(), /released/);
});

test('statistics tell the memory of weights and of the greatest run', (t) => {
  const { session, runner } = open(t, 'bulge');
  assert.equal(session.allocatorStats().Limit, undefined);
  const before = session.allocatorStats().MaxInUse!;
  assert(before < BULGE_ROW_BYTES);
  runRows(2);
  assert(session.allocatorStats().MaxInUse! >= 2 * BULGE_ROW_BYTES);

  function runRows(rows: number): void {
    const { value, memory } = makeValue(runner, tensor('FP32', [rows, 1], new Float32Array(rows)));
    const outputs: (TensorValue | undefined)[] = [undefined];
    try {
      runner.run([value], [0], outputs);
    } finally {
      runner.release(value);
      for (const output of outputs) if (output !== undefined) runner.release(output);
      assert.equal(memory.count > 0, true);
    }
  }
});

test('each session keeps to its own memory limit, and runs that fit still work after one that did not', (t) => {
  const small = open(t, 'bulge', { ...CPU, arenaMaxBytes: 3 * BULGE_ROW_BYTES });
  const large = open(t, 'bulge', { ...CPU, arenaMaxBytes: 12 * BULGE_ROW_BYTES });
  const free = open(t, 'bulge');
  assert.equal(small.session.allocatorStats().Limit, 3 * BULGE_ROW_BYTES);
  assert.equal(large.session.allocatorStats().Limit, 12 * BULGE_ROW_BYTES);
  const run = ({ runner }: typeof small, rows: number): void => {
    const { value } = makeValue(runner, tensor('FP32', [rows, 1], new Float32Array(rows)));
    const outputs: (TensorValue | undefined)[] = [undefined];
    try {
      runner.run([value], [0], outputs);
      runner.release(outputs[0]!);
    } finally {
      runner.release(value);
    }
  };
  run(small, 1);
  assert.throws(
    () => run(small, 8),
    (error) => error instanceof OrtError && isOutOfMemory(error),
  );
  run(small, 1);
  run(large, 8);
  run(free, 8);
});

test('a limit below the weights refuses the load instead of every run', () => {
  assert.throws(
    () => Session.load(modelPath('mlp'), { ...CPU, arenaMaxBytes: 10_000 }),
    (error) =>
      error instanceof WeightsTooLarge &&
      error.code === 'OUT_OF_MEMORY' &&
      error.weightsBytes > 10_000 &&
      /memory_budget_bytes/.test(error.message),
  );
});

test('a run may give the memory of the arena back', (t) => {
  const { session, runner } = open(t, 'bulge', { ...CPU, arenaMaxBytes: 16 * BULGE_ROW_BYTES });
  const run = (rows: number, shrink: boolean): number => {
    const { value } = makeValue(runner, tensor('FP32', [rows, 1], new Float32Array(rows)));
    const outputs: (TensorValue | undefined)[] = [undefined];
    runner.run([value], [0], outputs, shrink);
    runner.release(value);
    runner.release(outputs[0]!);
    return session.allocatorStats().TotalAllocated!;
  };
  assert(run(4, false) >= 4 * BULGE_ROW_BYTES);
  assert(run(1, true) < 2 * BULGE_ROW_BYTES);
  run(4, false);
  assert(run(1, false) >= 4 * BULGE_ROW_BYTES, 'only the run that was told to gives memory back');
});

test('failed loads and runs print nothing of their own', () => {
  const from = (file: string) => JSON.stringify(import.meta.resolve(`../../../src/runtime/${file}`));
  const program = `
    import { Session } from ${from('session.js')};
    import { Runner } from ${from('runner.js')};
    import { Cells } from ${from('cells.js')};
    const options = { provider: 'cpu', deviceId: 0, intraOpThreads: 2 };
    try { Session.load(process.argv[2], options); } catch (error) { console.log(error.name); }
    const session = Session.load(process.argv[1], options);
    const runner = new Runner(session.handle);
    const index = new Cells(1);
    index.set(0, 99);
    try { runner.run([runner.tensorOver('INT64', index.address, 8, [1])], [0], [undefined]); } catch (error) { console.log(error.name); }
  `;
  const files = [modelPath('lookup'), filePath('noise.onnx', 'noise')];
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program, ...files], {
    encoding: 'utf8',
  });
  assert.equal(stdout, 'OrtError\nOrtError\n');
  assert.equal(stderr, '');
});
