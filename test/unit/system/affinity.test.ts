import assert from 'node:assert/strict';
import { availableParallelism } from 'node:os';
import { test } from 'node:test';
import { CORES_MAX, formatCoreSet, getAffinity, parseCoreSet, setAffinity } from '../../../src/system/affinity.ts';
import { startFixture } from './child.ts';

test('a set of cores is read and written as the kernel writes it', () => {
  for (const [text, cores] of [
    ['0', [0]],
    ['0-3,8', [0, 1, 2, 3, 8]],
    [' 8 , 0 - 1,1 \n', [0, 1, 8]],
    ['4095', [4095]],
  ] as const) {
    assert.deepEqual(parseCoreSet(text), cores);
    assert.deepEqual(parseCoreSet(formatCoreSet(cores)), cores);
  }
  assert.equal(formatCoreSet([8, 3, 2, 1, 0, 3]), '0-3,8');
  assert.equal(formatCoreSet([0, 1, 3]), '0-1,3');
});

test('a text that is no set of cores is refused with the part that is wrong', () => {
  assert.throws(() => parseCoreSet(''), /"" is not a core number/);
  assert.throws(() => parseCoreSet('0,'), /"" is not a core number/);
  assert.throws(() => parseCoreSet('0,two'), /"two" is not a core number/);
  assert.throws(() => parseCoreSet('-1'), /"-1" is not/);
  assert.throws(() => parseCoreSet('1.5'), /"1.5" is not/);
  assert.throws(() => parseCoreSet('3-1'), /backwards: write "1-3"/);
  assert.throws(() => parseCoreSet(`0-${CORES_MAX}`), /4096 is too high: the highest is 4095/);
  assert.throws(() => parseCoreSet('0-99999999999999999999'), /too high/);
});

test('the affinity has as many cores as libuv counts', () => {
  assert.ok(getAffinity().length >= availableParallelism());
  assert.ok(availableParallelism() >= 1);
});

test('a confined process has all its threads, later ones and children on its cores', async (t) => {
  const core = getAffinity().at(-1);
  const child = startFixture(t, 'confined', [core!]);
  const only = String(core);
  assert.deepEqual(JSON.parse(await child.line()), { threads: [only], more: true, child: only });
});

test('an empty or impossible set changes nothing', () => {
  const before = getAffinity();
  assert.throws(() => setAffinity([]), RangeError);
  assert.throws(() => setAffinity([CORES_MAX]), RangeError);
  assert.throws(() => setAffinity([0.5]), RangeError);
  assert.throws(() => setAffinity([CORES_MAX - 1]), { code: 'EINVAL', message: /use cores 4095/ });
  assert.deepEqual(getAffinity(), before);
});
