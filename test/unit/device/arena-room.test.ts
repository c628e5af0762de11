/** The room that instances share. Real threads; what they do is counted in shared words. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { ArenaRoom } from '../../../src/device/arena-room.ts';
import type { RoomWork } from './fixtures/room-worker.ts';

const MIB = 2 ** 20;

test('a run books what it takes, and what is booked is free again when it is over', () => {
  const room = new ArenaRoom(10 * MIB, ArenaRoom.memory());
  const booked = room.enter(4 * MIB, () => assert.fail('nobody else is there'));
  assert.equal(room.freeBytes, 6 * MIB);
  assert(room.isOnly);
  room.leave(booked);
  assert.equal(room.freeBytes, 10 * MIB);
  assert.equal(room.takeMostBytes(), 4 * MIB);
  assert.equal(room.takeMostBytes(), 0);
});

test('a run that takes more than there is runs when nobody else does', () => {
  const room = new ArenaRoom(10 * MIB, ArenaRoom.memory());
  const booked = room.enter(40 * MIB, () => assert.fail('nobody else is there'));
  assert.equal(room.freeBytes, 0);
  room.leave(booked);
});

test('without a bound nobody waits for anybody', () => {
  const room = new ArenaRoom(Number.POSITIVE_INFINITY, ArenaRoom.memory());
  for (let n = 0; n < 100; n++) room.enter(2 ** 40, () => assert.fail('there is no bound'));
});

test('one instance looks after the arena, and another one when that has ended', () => {
  const memory = ArenaRoom.memory();
  const [one, other] = [new ArenaRoom(MIB, memory), new ArenaRoom(MIB, memory)];
  one.join();
  other.join();
  assert.equal(one.instances, 2);
  assert.deepEqual([one.looksAfter(3), other.looksAfter(4), one.looksAfter(3)], [true, false, true]);
  one.part(3);
  assert.equal(other.looksAfter(4), true);
  assert.equal(other.instances, 1);
});

// Acceptable: any order. Forbidden: more booked than there is, a run beside one that is alone, a thread that never gets its turn.
test('threads that book and ask to be alone never pass the room, never disturb who is alone, and all come to their end', async () => {
  const memory = ArenaRoom.memory();
  const words = new Int32Array(new SharedArrayBuffer(16));
  const work: RoomWork = { memory, words, roomUnits: 10, rounds: 2000 };
  const workers = [1, 2, 3, 4].map(
    (seed) => new Worker(new URL('./fixtures/room-worker.js', import.meta.url), { workerData: { ...work, seed } }),
  );
  await Promise.all(workers.map((worker) => once(worker, 'exit')));
  const [inside, alone, faults, done] = words;
  assert.deepEqual({ inside, alone, faults, done }, { inside: 0, alone: 0, faults: 0, done: 4 * work.rounds });
  assert.equal(new ArenaRoom(10 * 64 * 1024, memory).freeBytes, 10 * 64 * 1024);
});
