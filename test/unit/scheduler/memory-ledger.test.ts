import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type Account,
  admit,
  type Claim,
  freeBytes,
  leastBytes,
  spendableBytes,
} from '../../../src/scheduler/memory-ledger.ts';
import { type Random, seedFromEnv } from '../../support/random.ts';

const MIB = 2 ** 20;

function account(totalMib: number | undefined, changes: Partial<Account> = {}): Account {
  const totalBytes = totalMib === undefined ? undefined : totalMib * MIB;
  return { device: 'cpu', totalBytes, source: '--memory-budget-bytes', reserveBytes: 0, othersBytes: 0, ...changes };
}

function claim(model: string, weightsMib: number, changes: Partial<Claim> = {}): Claim {
  return {
    model,
    weightsBytes: weightsMib * MIB,
    weightsFrom: 'estimated',
    oneRowBytes: undefined,
    runsBytes: undefined,
    budgetBytes: undefined,
    shareBytes: undefined,
    ...changes,
  };
}

function shareMib(of: Account, claims: readonly Claim[], model: string): number | undefined {
  const admission = admit(of, claims, model);
  assert(admission.fits, JSON.stringify(admission));
  return admission.shareBytes === undefined ? undefined : admission.shareBytes / MIB;
}

test('a model that is alone gets all there is but the reserve and what others have', () => {
  const of = account(1000, { reserveBytes: 100 * MIB, othersBytes: 50 * MIB });
  assert.equal(shareMib(of, [claim('a', 200)], 'a'), 850);
});

test('models that are still to come keep their weights and an equal part of the rest', () => {
  const claims = [claim('a', 200), claim('b', 100), claim('c', 100)];
  assert.equal(shareMib(account(1000), claims, 'a'), 200 + 200);
});

test('nobody gets more than it was measured to use; the others get the rest', () => {
  const claims = [claim('a', 200), claim('b', 100, { weightsFrom: 'measured', runsBytes: 50 * MIB })];
  assert.equal(shareMib(account(1000), claims, 'a'), 850);
  assert.equal(shareMib(account(1000), claims, 'b'), 150);
});

test('a share can grow where it is what the model was thought to need and there is more', () => {
  const canGrow = (totalMib: number | undefined, claims: readonly Claim[]) => {
    const admission = admit(account(totalMib), claims, claims[0]!.model);
    assert(admission.fits);
    return admission.canGrow;
  };
  const known = { weightsFrom: 'measured', runsBytes: 50 * MIB } as const;
  assert.equal(canGrow(1000, [claim('a', 100, known)]), true);
  assert.equal(canGrow(1000, [claim('a', 100, known), claim('b', 100)]), true);
  assert.equal(canGrow(150, [claim('a', 100, known)]), false, 'it has all there is');
  assert.equal(canGrow(1000, [claim('a', 100)]), false, 'it has all there is already');
  assert.equal(canGrow(1000, [claim('a', 100, { ...known, budgetBytes: 200 * MIB })]), false, 'its own budget');
  assert.equal(canGrow(undefined, [claim('a', 100, known)]), false, 'there is no limit');
});

test('a budget of its own bounds the share of a model', () => {
  assert.equal(shareMib(account(1000), [claim('a', 200, { budgetBytes: 300 * MIB })], 'a'), 300);
  assert.equal(shareMib(account(undefined), [claim('a', 200, { budgetBytes: 300 * MIB })], 'a'), 300);
  assert.equal(shareMib(account(undefined), [claim('a', 200)], 'a'), undefined);
});

test('a model that does not fit is refused with the sums', () => {
  const claims = [
    claim('a/1', 200, { shareBytes: 700 * MIB }),
    claim('b/1', 100, { shareBytes: 150 * MIB }),
    claim('big/1', 180, { weightsFrom: 'measured', oneRowBytes: 16 * MIB }),
  ];
  const refused = admit(account(1024, { reserveBytes: 24 * MIB }), claims, 'big/1');
  assert.deepEqual(refused, {
    fits: false,
    reason:
      'its weights take 180 MiB (measured when they were last loaded) and a run of one row 16 MiB, and cpu has 150 MiB left: ' +
      '1 GiB (--memory-budget-bytes) - 24 MiB in reserve - 700 MiB for a/1 - 150 MiB for b/1',
  });
});

test('a model whose weights pass its own budget is refused with both figures', () => {
  const refused = admit(account(undefined), [claim('a', 200, { budgetBytes: 100 * MIB })], 'a');
  assert.deepEqual(refused, {
    fits: false,
    reason: 'its weights take 200 MiB (by the size of its files), more than its memory_budget_bytes (100 MiB)',
  });
});

test('of many models only the largest are named in the sums', () => {
  const claims = Array.from({ length: 9 }, (_, n) => claim(`m${n}`, 1, { shareBytes: (n + 1) * MIB }));
  const refused = admit(account(45), [...claims, claim('x', 1)], 'x');
  assert(!refused.fits);
  assert.match(refused.reason, /- 9 MiB for m8 - 8 MiB for m7 - 7 MiB for m6 - 6 MiB for m5 - 15 MiB for 5 more$/);
});

function randomClaim(random: Random, model: string): Claim {
  const weightsBytes = random.int(0, 400) * MIB;
  const oneRowBytes = random.chance(0.5) ? random.int(0, 100) * MIB : undefined;
  return {
    model,
    weightsBytes,
    weightsFrom: oneRowBytes === undefined ? 'estimated' : 'measured',
    oneRowBytes,
    runsBytes: oneRowBytes !== undefined && random.chance(0.7) ? oneRowBytes * random.int(1, 64) : undefined,
    budgetBytes: random.chance(0.3) ? random.int(1, 600) * MIB : undefined,
    shareBytes: undefined,
  };
}

test('whatever is loaded and lost in whatever order, shares add up and nobody that was counted on is refused', () => {
  const random = seedFromEnv();
  for (let world = 0; world < 300; world++) {
    const of = account(random.int(0, 2000), {
      reserveBytes: random.int(0, 100) * MIB,
      othersBytes: random.int(0, 100) * MIB,
    });
    const spendable = spendableBytes(of)!;
    let claims = Array.from({ length: random.int(1, 8) }, (_, n) => randomClaim(random, `m${n}`));
    /** Those that were still to come and had a place when another was loaded. */
    let promised = new Set<string>();
    for (let n = 0; n < 40; n++) {
      const { model, shareBytes } = random.pick(claims);
      if (shareBytes !== undefined) {
        claims = claims.map((one) => (one.model === model ? { ...one, shareBytes: undefined } : one));
        promised = new Set();
        continue;
      }
      const one = claims.find((each) => each.model === model)!;
      const free = freeBytes(of, claims)!;
      const admission = admit(of, claims, model);
      const least = leastBytes(one);
      assert.equal(admission.fits, least <= free && least <= (one.budgetBytes ?? least), `${world}/${n}: ${model}`);
      if (!admission.fits) {
        assert(!promised.has(model) || least > (one.budgetBytes ?? least), `${world}/${n}: ${model} was counted on`);
        continue;
      }
      const share = admission.shareBytes!;
      assert(share >= least && share <= free, `${share} of ${free}`);
      assert(share <= (one.budgetBytes ?? share));
      claims = claims.map((each) => (each === one ? { ...each, shareBytes: share } : each));
      let left = freeBytes(of, claims)!;
      promised = new Set();
      for (const other of claims) {
        if (other.shareBytes !== undefined || leastBytes(other) > left) continue;
        // Only in the order of the list: who is loaded out of turn may take another's place.
        left -= leastBytes(other);
        promised.add(other.model);
        break;
      }
      const sum = claims.reduce((total, each) => total + (each.shareBytes ?? 0), 0);
      assert(sum <= spendable, `${sum} of ${spendable}`);
    }
  }
});

test('loaded in their order, all that fit together by their least are loaded', () => {
  const random = seedFromEnv();
  for (let world = 0; world < 500; world++) {
    let claims = Array.from({ length: random.int(1, 8) }, (_, n) => ({
      ...randomClaim(random, `m${n}`),
      budgetBytes: undefined as number | undefined,
    }));
    const needed = claims.reduce((sum, one) => sum + leastBytes(one), 0);
    const of = account(undefined, { totalBytes: needed + random.int(0, 3) * 50 * MIB });
    for (const { model } of claims) {
      const admission = admit(of, claims, model);
      assert(admission.fits, `${model}: ${JSON.stringify(admission)}`);
      claims = claims.map((one) => (one.model === model ? { ...one, shareBytes: admission.shareBytes } : one));
    }
  }
});
