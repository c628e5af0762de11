import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  BATCH_ROWS_MAX,
  CLAIM_CLAIMED,
  CLAIM_EMPTY,
  CLAIM_READY,
  CLAIM_RELEASED,
  CLAIM_SEAL,
  CLAIM_STOLEN,
  claimEmpty,
  claimHasGeneration,
  claimMoved,
  claimRows,
  claimSeal,
  claimSlot,
  claimState,
  claimWord,
  INGRESS_MAX,
  INSTANCES_MAX,
  ingressOwner,
  instanceOwner,
  OWNER_NONE,
  OWNER_SUPERVISOR,
  SLAB_FREE,
  SLAB_FREEING,
  SLAB_STATES,
  slabHasGeneration,
  slabMoved,
  slabOwner,
  slabState,
  slabWord,
} from '../../../src/queue/states.ts';
import { seedFromEnv } from '../../support/random.ts';

const CLAIM_STATES = [CLAIM_EMPTY, CLAIM_CLAIMED, CLAIM_READY, CLAIM_RELEASED, CLAIM_STOLEN, CLAIM_SEAL];

test('a slab word gives back its state, owner and generation, at the ends of their ranges and between', () => {
  const random = seedFromEnv();
  for (let n = 0; n < 2000; n++) {
    const state = random.int(SLAB_FREE, SLAB_FREEING);
    const owner = n < 2 ? n * OWNER_SUPERVISOR : random.int(OWNER_NONE, OWNER_SUPERVISOR);
    const generation = n < 4 ? [0, 0xfffff, -1, 0x7fffffff][n]! : random.uint32() | 0;
    const word = slabWord(state, owner, generation);
    assert.equal(word, word | 0, 'fits an Int32Array');
    assert.deepEqual([slabState(word), slabOwner(word)], [state, owner]);
    assert.ok(slabHasGeneration(word, generation));
    assert.ok(!slabHasGeneration(word, generation + 1));
    const moved = slabMoved(word, SLAB_FREEING, 7);
    assert.deepEqual([slabState(moved), slabOwner(moved)], [SLAB_FREEING, 7]);
    assert.ok(slabHasGeneration(moved, generation));
  }
  assert.equal(SLAB_STATES.length, SLAB_FREEING + 1);
});

test('a claim word gives back its state, slot, rows and generation, at the ends of their ranges and between', () => {
  const random = seedFromEnv();
  for (let n = 0; n < 2000; n++) {
    const state = random.pick(CLAIM_STATES);
    const slot = n < 2 ? n * (INGRESS_MAX - 1) : random.int(0, INGRESS_MAX - 1);
    const rows = n < 2 ? 1 + n * (BATCH_ROWS_MAX - 1) : random.int(1, BATCH_ROWS_MAX);
    const generation = n < 4 ? [0, 0xfff, -1, 0x7fffffff][n]! : random.uint32() | 0;
    const word = claimWord(state, slot, rows, generation);
    assert.equal(word, word | 0, 'fits an Int32Array');
    assert.deepEqual([claimState(word), claimSlot(word), claimRows(word)], [state, slot, rows]);
    assert.ok(claimHasGeneration(word, generation));
    assert.ok(!claimHasGeneration(word, generation + 1));
    for (const to of CLAIM_STATES) assert.equal(claimMoved(word, to), claimWord(to, slot, rows, generation));
  }
});

test('an untaken claim and the end marker differ from each other and from every taken claim of any generation', () => {
  for (const generation of [0, 1, 0xfff, -1]) {
    assert.equal(claimState(claimEmpty(generation)), CLAIM_EMPTY);
    assert.equal(claimState(claimSeal(generation)), CLAIM_SEAL);
    assert.ok(claimHasGeneration(claimEmpty(generation), generation));
    assert.ok(claimHasGeneration(claimSeal(generation), generation));
    assert.notEqual(claimEmpty(generation), claimEmpty(generation + 1));
  }
});

test('owners of ingress slots, instance slots and the supervisor are all different', () => {
  const owners = [OWNER_NONE, OWNER_SUPERVISOR];
  for (let slot = 0; slot < INGRESS_MAX; slot++) owners.push(ingressOwner(slot));
  for (let slot = 0; slot < INSTANCES_MAX; slot++) owners.push(instanceOwner(slot));
  assert.equal(new Set(owners).size, owners.length);
  assert.ok(owners.every((owner) => owner >= 0 && owner <= 0xff));
});
