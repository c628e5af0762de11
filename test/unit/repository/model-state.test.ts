/** The states of a served version: the whole table of events, and what a record says in each state. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  canHappen,
  countModelStates,
  initialModelState,
  MODEL_STATES,
  type ModelEvent,
  type ModelState,
  type ModelStateRecord,
  transition,
} from '../../../src/repository/model-state.ts';
import { seedFromEnv } from '../../support/random.ts';

const EVENTS: readonly ModelEvent[] = ['load', 'loaded', 'load_failed', 'lost', 'unload', 'unloaded'];
const REASON = 'ONNX Runtime: protobuf parsing failed';

/** State, event, next state; everything else is a bug. */
const allowed: readonly (readonly [ModelState, ModelEvent, ModelState])[] = [
  ['UNAVAILABLE', 'load', 'LOADING'],
  ['LOADING', 'loaded', 'READY'],
  ['LOADING', 'load_failed', 'UNAVAILABLE'],
  ['LOADING', 'lost', 'UNAVAILABLE'],
  ['LOADING', 'unload', 'UNLOADING'],
  ['READY', 'unload', 'UNLOADING'],
  ['READY', 'lost', 'UNAVAILABLE'],
  ['UNLOADING', 'unloaded', 'UNAVAILABLE'],
  ['UNLOADING', 'lost', 'UNAVAILABLE'],
  ['UNLOADING', 'loaded', 'UNLOADING'],
  ['UNLOADING', 'load_failed', 'UNLOADING'],
];

function inState(state: ModelState): ModelStateRecord {
  const path: Readonly<Record<ModelState, readonly ModelEvent[]>> = {
    UNAVAILABLE: [],
    LOADING: ['load'],
    READY: ['load', 'loaded'],
    UNLOADING: ['load', 'loaded', 'unload'],
  };
  return path[state].reduce((record, event) => transition(record, event, 10), initialModelState(10));
}

for (const state of MODEL_STATES) {
  for (const event of EVENTS) {
    const next = allowed.find(([from, by]) => from === state && by === event)?.[2];
    test(`${event} in ${state} ${next === undefined ? 'is a bug' : `leads to ${next}`}`, () => {
      assert.equal(canHappen(state, event), next !== undefined);
      if (next === undefined) {
        assert.throws(() => transition(inState(state), event, 20, REASON), /This is a bug/);
      } else {
        assert.equal(transition(inState(state), event, 20, REASON).state, next);
      }
    });
  }
}

test('a failure keeps its reason until the next load', () => {
  const failed = transition(inState('LOADING'), 'load_failed', 20, `${REASON}\n  at byte 7\n`);
  assert.deepEqual(failed, { state: 'UNAVAILABLE', reason: `${REASON} at byte 7`, sinceMs: 20 });
  assert.equal(transition(failed, 'load', 30).reason, 'loading');
});

test('a failure without a reason is a bug', () => {
  assert.throws(() => transition(inState('LOADING'), 'load_failed', 20), /This is a bug/);
  assert.throws(() => transition(inState('READY'), 'lost', 20, ' '), /This is a bug/);
});

test('a ready version has no reason, even if one is given', () => {
  assert.equal(transition(inState('LOADING'), 'loaded', 20, 'fine').reason, '');
});

test('an answer that an unload has overtaken changes nothing, not even the time', () => {
  const unloading = inState('UNLOADING');
  assert.equal(transition(unloading, 'loaded', 99), unloading);
});

test('a long reason is cut', () => {
  const { reason } = transition(inState('LOADING'), 'load_failed', 20, 'x'.repeat(100_000));
  assert.equal(reason.length, 2000);
  assert.ok(reason.endsWith('…'));
});

test('records cannot be changed in place', () => {
  assert.ok(Object.isFrozen(inState('READY')));
  assert.ok(Object.isFrozen(initialModelState(0)));
});

test('in any history a reason stands exactly where the version is not ready, and every version can become ready again', () => {
  const random = seedFromEnv();
  const records = new Map<number, ModelStateRecord>();
  for (let step = 0; step < 5000; step++) {
    const version = random.int(1, 20);
    const before = records.get(version) ?? initialModelState(step);
    const event = random.pick(EVENTS.filter((one) => canHappen(before.state, one)));
    const after = transition(before, event, step, event === 'lost' || event === 'load_failed' ? REASON : undefined);
    assert.equal(after.reason === '', after.state === 'READY');
    records.set(version, after);
  }
  const counts = countModelStates(records.values());
  assert.equal(
    MODEL_STATES.reduce((sum, state) => sum + counts[state], 0),
    records.size,
  );
  for (const state of MODEL_STATES) {
    assert.equal(counts[state], [...records.values()].filter((record) => record.state === state).length);
    const next: Readonly<Record<ModelState, ModelEvent>> = {
      UNAVAILABLE: 'load',
      LOADING: 'loaded',
      READY: 'unload',
      UNLOADING: 'unloaded',
    };
    let record = inState(state);
    for (let moves = 0; record.state !== 'READY' && moves < 4; moves++) {
      record = transition(record, next[record.state], 0);
    }
    assert.equal(record.state, 'READY');
  }
});
