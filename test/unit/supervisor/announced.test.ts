/** Which of several versions of one number stands for it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULT_MODEL_CONFIG } from '../../../src/config/model-config.ts';
import { announced } from '../../../src/supervisor/announced.ts';
import { ServedVersion } from '../../../src/supervisor/served-version.ts';

function version(generation: number, state: 'READY' | 'LOADING', number = '1'): ServedVersion {
  const model = { name: 'm', version: number, path: '/m', sizeBytes: 1, config: DEFAULT_MODEL_CONFIG };
  const one = new ServedVersion(model, ['cpu'], 1, [], generation);
  one.move('load');
  if (state === 'READY') one.move('loaded');
  return one;
}

test('each number has one, whatever the order', () => {
  const [one, two] = [version(1, 'READY', '1'), version(1, 'READY', '2')];
  assert.deepEqual(announced([one, two]), [one, two]);
});

test('what serves stands before what is loading, and the newer one before the older', () => {
  const [old, next] = [version(1, 'READY'), version(2, 'LOADING')];
  assert.deepEqual(announced([old, next]), [old]);
  next.move('loaded');
  assert.deepEqual(announced([next, old]), [next]);
  next.withdraw();
  assert.deepEqual(announced([old, next]), [old]);
});

// Story: the first device that had loaded a new file made all requests go there, and the others, which had yet to load it, did nothing.
test('one on standby waits behind another that serves, and only as long as it does', () => {
  const [old, next] = [version(1, 'READY'), version(2, 'READY')];
  next.standby = true;
  assert.deepEqual(announced([old, next]), [old]);
  assert.deepEqual(announced([next, old]), [old]);
  old.move('lost', 'its device died');
  assert.deepEqual(announced([old, next]), [next]);
});
