/** Readiness of the server from the states of its models: never vacuously true, and always with a reason. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG } from '../../../src/config/model-config.ts';
import { Readiness } from '../../../src/supervisor/readiness.ts';
import { ServedVersion } from '../../../src/supervisor/served-version.ts';

function version(name: string, devices = ['cpu']): ServedVersion {
  const model = { name, version: '1', path: `/m/${name}`, sizeBytes: 1, config: DEFAULT_MODEL_CONFIG };
  return new ServedVersion(model, devices, 1, []);
}

function ready(name: string, devices?: string[]): ServedVersion {
  const one = version(name, devices);
  one.move('load');
  one.move('loaded');
  one.placements[0]!.state = 'serving';
  return one;
}

function failed(name: string): ServedVersion {
  const one = version(name);
  one.move('load');
  one.move('load_failed', 'it is damaged');
  one.placements[0]!.state = 'failed';
  return one;
}

function now(versions: ServedVersion[], strict = false) {
  return new Readiness(versions, strict, false).now('running');
}

test('a server without models is not ready', () => {
  assert.deepEqual(now([]), { ready: false, reason: 'there is no model' });
});

test('a server is ready when all of its models are', () => {
  assert.deepEqual(now([ready('a'), ready('b')]), { ready: true, reason: '' });
});

test('a model that still loads holds it back, and only that is the reason', () => {
  const loading = version('b');
  loading.move('load');
  const { ready: isReady, reason } = now([ready('a'), loading]);
  assert.equal(isReady, false);
  assert.equal(reason, 'b/1: loading');
});

test('a failed model is left out, unless readiness is strict or nothing else is there', () => {
  assert.equal(now([ready('a'), failed('b')]).ready, true);
  assert.deepEqual(now([ready('a'), failed('b')], true), { ready: false, reason: 'b/1: it is damaged' });
  assert.deepEqual(now([failed('b')]), { ready: false, reason: 'b/1: it is damaged' });
});

test('one that was asked for later counts when it serves; strictly, also when it could not be loaded', () => {
  const later = failed('b');
  later.counts = false;
  assert.equal(now([later, ready('a')]).ready, true);
  assert.deepEqual(now([later, ready('a')], true), { ready: false, reason: 'b/1: it is damaged' });
  later.end();
  assert.equal(now([later, ready('a')], true).ready, true, 'nobody wants it any more');
});

test('while a failed model is tried again it counts as failed: readiness does not flap', () => {
  const again = failed('b');
  again.placements[0]!.state = 'waiting';
  again.placements[0]!.probation = true;
  assert.equal(now([ready('a'), again]).ready, true);
  again.placements[0]!.state = 'loading';
  again.move('load');
  assert.equal(now([ready('a'), again]).ready, true);
  assert.equal(now([ready('a'), again], true).ready, false);
  again.placements[0]!.state = 'serving';
  again.move('loaded');
  assert.equal(now([again], true).ready, true);
});

test('a model whose only device is given up for now makes the server unready; it has not failed for good', () => {
  const lost = ready('a');
  lost.placements[0]!.state = 'waiting';
  lost.placements[0]!.outage = 'its device process cpu is given up for now';
  lost.move('lost', 'its device process cpu is given up for now');
  assert.equal(lost.abandoned, true);
  assert.equal(lost.failed, false);
  assert.deepEqual(now([lost, ready('b')]), {
    ready: false,
    reason: 'a/1: its device process cpu is given up for now',
  });
});

test('a model that another device serves is not lost with one', () => {
  const held = ready('a', ['cpu', 'cpu#2']);
  held.placements[1]!.outage = 'given up';
  assert.equal(held.abandoned, false);
  assert.equal(held.announcement().state, 'READY');
  assert.equal(now([held]).ready, true);
});

test('a model whose devices all stand still is not ready, keeps what is sent to it, and is ready again when one goes on', () => {
  const held = ready('a', ['cpu', 'cpu#2']);
  const [first, second] = held.placements;
  second!.state = 'serving';
  first!.doubt = 'it is stopped by a signal';
  held.weighDoubts();
  assert.equal(now([held]).ready, true);
  second!.doubt = 'it is stopped, too';
  held.weighDoubts();
  assert.deepEqual(now([held]), { ready: false, reason: 'a/1: it is stopped by a signal' });
  assert.equal(held.abandoned, false);
  first!.doubt = undefined;
  held.weighDoubts();
  assert.deepEqual(now([held]), { ready: true, reason: '' });
});

test('doubts change nothing about a model that nobody serves yet', () => {
  const loading = version('a');
  loading.move('load');
  loading.weighDoubts();
  assert.equal(loading.record.state, 'LOADING');
  const broken = failed('b');
  broken.weighDoubts();
  assert.equal(broken.record.reason, 'it is damaged');
});

test('one that drains or has stopped is not ready, whatever its models are', () => {
  const readiness = new Readiness([ready('a')], false, false);
  for (const state of ['draining', 'stopped'] as const) {
    assert.deepEqual(readiness.now(state), { ready: false, reason: 'the server is shutting down' });
  }
});

test('it is settled once nothing is on its way any more', () => {
  const loading = version('b');
  assert.equal(new Readiness([ready('a'), loading], false, false).settled, false);
  assert.equal(new Readiness([ready('a'), failed('b')], false, false).settled, true);
  loading.placements[0]!.outage = 'given up';
  assert.equal(new Readiness([ready('a'), loading], false, false).settled, true);
});

test('the reason of a model that cannot be served can be told anew, that of a ready one not', () => {
  const lost = failed('a');
  const { sinceMs } = lost.record;
  lost.explain('another reason');
  assert.deepEqual(
    [lost.record.state, lost.record.reason, lost.record.sinceMs],
    ['UNAVAILABLE', 'another reason', sinceMs],
  );
  const good = ready('b');
  good.explain('x');
  assert.deepEqual([good.record.state, good.record.reason], ['READY', '']);
});
