/** The proof that an instance can still run: batches give it, and a canary run where none has succeeded for a while. The clock is made up. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InstanceUnsound, PROOF_MAX_AGE_US, Proof } from '../../../src/device/proof.ts';
import { RunFault } from '../../../src/device/slab-run.ts';
import { STATUS_DEADLINE } from '../../../src/queue/result.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';

const BROKEN = new OrtError(1, 'an illegal memory access was encountered');

/** An instance whose canary runs take `costUs` and throw what is next in `failures`. */
function makeInstance(costUs = 1000) {
  const world = { nowUs: 1, lastRunUs: 0, canaries: 0, failures: [] as Error[] };
  const run = (): void => {
    world.canaries++;
    world.nowUs += costUs;
    const failure = world.failures.shift();
    if (failure !== undefined) throw failure;
  };
  const proof = new Proof(
    () => world.lastRunUs,
    run,
    () => world.nowUs,
  );
  return { world, proof };
}

test('an idle instance makes a canary run now and then, and no more often', () => {
  const { world, proof } = makeInstance();
  for (let n = 0; n < 100; n++) {
    world.nowUs += PROOF_MAX_AGE_US / 10;
    proof.renew();
  }
  assert.equal(world.canaries, 10);
});

test('where batches succeed none is made; where they do not, it is', () => {
  const { world, proof } = makeInstance();
  for (let n = 0; n < 100; n++) {
    world.nowUs += PROOF_MAX_AGE_US / 10;
    world.lastRunUs = world.nowUs;
    proof.renew();
  }
  assert.equal(world.canaries, 0);
  world.nowUs += PROOF_MAX_AGE_US;
  proof.renew();
  assert.equal(world.canaries, 1);
});

test('one that takes long is made less often', () => {
  const { world, proof } = makeInstance(PROOF_MAX_AGE_US / 10);
  world.nowUs += PROOF_MAX_AGE_US;
  proof.renew();
  for (let n = 0; n < 9; n++) {
    world.nowUs += PROOF_MAX_AGE_US;
    proof.renew();
  }
  assert.equal(world.canaries, 1);
  world.nowUs += PROOF_MAX_AGE_US;
  proof.renew();
  assert.equal(world.canaries, 2);
});

test('one failure is tried again, failure after failure ends the instance, which says why', () => {
  const { world, proof } = makeInstance();
  world.failures = [BROKEN, BROKEN];
  world.nowUs += PROOF_MAX_AGE_US;
  proof.renew();
  assert.equal(world.canaries, 3);
  world.failures = [BROKEN, new RunFault(STATUS_DEADLINE, 'cancelled'), BROKEN];
  world.nowUs += PROOF_MAX_AGE_US;
  assert.throws(
    () => proof.renew(),
    (error) => error instanceof InstanceUnsound && /fails: an illegal memory access/.test(error.message),
  );
});

test('lack of memory says nothing about the device; what is no failure of a run is passed on', () => {
  const { world, proof } = makeInstance();
  world.failures = Array.from({ length: 3 }, () => new OrtError(1, 'Failed to allocate memory'));
  world.nowUs += PROOF_MAX_AGE_US;
  proof.renew();
  assert.equal(world.canaries, 1);
  const bug = new Error('a bug');
  world.failures = [bug];
  world.nowUs += PROOF_MAX_AGE_US;
  assert.throws(() => proof.renew(), bug);
});
