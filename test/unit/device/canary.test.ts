/** The canary run: inputs that a model takes are found, run again by instances, and a model that takes none says why. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { type Canary, findCanary, isRunFailure, runCanary } from '../../../src/device/canary.ts';
import { RunFault } from '../../../src/device/slab-run.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import type { Runner, TensorValue } from '../../../src/runtime/runner.ts';
import type { ModelSignature } from '../../../src/tensor/signature.ts';
import { FIXTURE_NAMES } from '../../support/models.ts';
import { open } from '../runtime/models.ts';

/** A runner that only tells what it is asked to run, and fails as it is told. */
function fakeRunner(run: (shapes: readonly (readonly number[])[]) => void) {
  let made: number[][] = [];
  let live = 0;
  const make = (shape: readonly number[]): TensorValue => {
    made.push([...shape]);
    live++;
    return live as TensorValue;
  };
  const runner = {
    tensorOver: (_datatype: unknown, _address: number, _bytes: number, shape: readonly number[]) => make(shape),
    stringTensor: make,
    setString: () => {},
    release: () => {
      live--;
    },
    run: (_inputs: unknown, _indices: unknown, outputs: (TensorValue | undefined)[]) => {
      const shapes = made;
      made = [];
      run(shapes);
      outputs.forEach((_, n) => {
        outputs[n] = ++live as TensorValue;
      });
    },
  } as unknown as Pick<Runner, 'tensorOver' | 'stringTensor' | 'setString' | 'run' | 'release'>;
  return { runner, live: () => live };
}

const SIGNATURE: ModelSignature = {
  inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 3, -1], symbols: ['N', '', ''] }],
  outputs: [{ name: 'y', datatype: 'FP32', shape: [-1], symbols: ['N'] }],
  skippedOutputs: [],
  metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
};

function openWith(t: TestContext, name: string) {
  const { session, runner } = open(t, name);
  return { runner, signature: session.signature };
}

for (const name of ['rows', 'mlp', 'conv', 'simple_string', 'dynamic', 'no_batch', 'scalar', 'recurrent', 'wide']) {
  test(`the model ${name} takes a canary, and again`, (t) => {
    const { runner, signature } = openWith(t, name);
    const { canary, report } = findCanary(runner, signature);
    assert.equal(report.found, true, report.detail);
    runCanary(runner, signature, canary!);
  });
}

test('most models of the tests take a canary, and none is broken by the search', (t) => {
  const without: string[] = [];
  for (const name of FIXTURE_NAMES.filter((name) => name !== 'mlp_big')) {
    const { runner, signature } = openWith(t, name);
    const { canary, report } = findCanary(runner, signature);
    assert.equal(report.found, canary !== undefined);
    assert.notEqual(report.detail, '');
    if (canary === undefined) without.push(name);
  }
  assert.ok(without.length <= 6, without.join(', '));
});

test('one row is run; other variable dimensions are tried one size after the other', () => {
  const seen: (readonly number[])[] = [];
  const { runner, live } = fakeRunner(([shape]) => {
    seen.push(shape!);
    if (shape![2] !== 8) throw new OrtError(2, 'wrong size');
  });
  const { canary } = findCanary(runner, SIGNATURE);
  assert.equal(canary?.size, 8);
  assert.ok(seen.every(([rows, channels]) => rows === 1 && channels === 3));
  assert.equal(live(), 0);
});

test('a model that takes nothing is left without a canary, with its reason and after few runs', () => {
  let runs = 0;
  const { runner, live } = fakeRunner(() => {
    runs++;
    throw new OrtError(2, 'not a word of mine');
  });
  const { canary, report } = findCanary(runner, SIGNATURE);
  assert.equal(canary, undefined);
  assert.equal(report.found, false);
  assert.match(report.detail, /not a word of mine/);
  assert.equal(runs, 10);
  assert.equal(live(), 0);
});

test('a model that has no memory for any of them is not taken for one that takes none', () => {
  const lack = new OrtError(1, 'Failed to allocate memory');
  const { runner, live } = fakeRunner(() => {
    throw lack;
  });
  assert.throws(() => findCanary(runner, SIGNATURE), lack);
  assert.equal(live(), 0);
  const { runner: picky } = fakeRunner(([shape]) => {
    throw shape![2] === 512 ? lack : new OrtError(2, 'wrong size');
  });
  assert.equal(findCanary(picky, SIGNATURE).report.found, false);
});

test('after a run that had to be cancelled no other is tried', () => {
  let runs = 0;
  const { runner } = fakeRunner(() => {
    runs++;
    throw new RunFault(4, 'cancelled');
  });
  assert.equal(findCanary(runner, SIGNATURE).canary, undefined);
  assert.equal(runs, 1);
});

test('inputs that would be too large are not made', () => {
  const { runner } = fakeRunner(() => assert.fail('it was run'));
  const huge: ModelSignature = {
    ...SIGNATURE,
    inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, 2 ** 28], symbols: ['N', ''] }],
  };
  assert.equal(findCanary(runner, huge).report.found, false);
});

test('a failed run is told apart from a bug', () => {
  const canary: Canary = { size: 1, mode: 'from zero' };
  const { runner, live } = fakeRunner(() => {
    throw new TypeError('a bug');
  });
  assert.throws(() => runCanary(runner, SIGNATURE, canary), TypeError);
  assert.throws(() => findCanary(runner, SIGNATURE), TypeError);
  assert.equal(live(), 0);
  assert.equal(isRunFailure(new OrtError(1, 'x')), true);
  assert.equal(isRunFailure(new TypeError('x')), false);
});
