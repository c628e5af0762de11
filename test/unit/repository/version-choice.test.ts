/** The choice of versions, checked against a plain restatement of the policy on random directories. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { VersionPolicy } from '../../../src/config/model-config.ts';
import { chooseVersions } from '../../../src/repository/version-choice.ts';
import { seedFromEnv } from '../../support/random.ts';

test('versions beyond 2^31 order as numbers', () => {
  const versions = ['9007199254740991', '2147483648', '10', '9', '4294967296'];
  assert.deepEqual(chooseVersions(versions, { kind: 'all' }, () => true).served, [
    '9007199254740991',
    '4294967296',
    '2147483648',
    '10',
    '9',
  ]);
});

test('with latest, no lower version is looked at once there are enough', () => {
  const looked: string[] = [];
  chooseVersions(['1', '2', '3', '4'], { kind: 'latest', count: 2 }, (version) => {
    looked.push(version);
    return version !== '4';
  });
  assert.deepEqual(looked, ['4', '3', '2']);
});

test('on random directories every policy serves the highest complete versions that it wants', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 2000; round++) {
    const present = new Set(Array.from({ length: random.int(0, 8) }, () => random.int(1, 15)));
    const complete = new Set([...present].filter(() => random.chance(0.7)));
    const named = [...new Set(Array.from({ length: random.int(1, 5) }, () => random.int(1, 15)))];
    const policy: VersionPolicy = random.pick<VersionPolicy>([
      { kind: 'all' },
      { kind: 'latest', count: random.int(1, 4) },
      { kind: 'specific', versions: named.map(String) },
    ]);
    const choice = chooseVersions([...present].map(String), policy, (version) => complete.has(Number(version)));

    const good = [...complete].sort((a, b) => b - a);
    const wanted =
      policy.kind === 'all'
        ? good
        : policy.kind === 'latest'
          ? good.slice(0, policy.count)
          : good.filter((version) => named.includes(version));
    assert.deepEqual(choice.served.map(Number), wanted);
    const missing = policy.kind === 'specific' ? named.filter((version) => !present.has(version)) : [];
    assert.deepEqual(choice.missing.map(Number), missing);
    assert.equal(choice.beyondBound, 0);
    assert.ok(choice.incomplete.every((version) => present.has(Number(version)) && !complete.has(Number(version))));
  }
});
