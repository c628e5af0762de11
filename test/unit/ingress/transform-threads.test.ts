/** Threads of a transform: what waits is bounded and counted, whoever has left is passed over, and a module that is gone is a failure of each call. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { BodyBudget } from '../../../src/ingress/body.ts';
import { type TransformCall, TransformThreads } from '../../../src/ingress/transform-threads.ts';
import { temporaryDirectory } from '../../support/repository.ts';
import { tensor } from '../protocol/fixtures.ts';

const MIB = 2 ** 20;
const ENTRY = new URL('../../../workers/transform.js', import.meta.url);
const WAITING_MAX = 128;
/** Doubles what it gets; waits for ever for 0. */
const MODULE = `
export const before = async ({ inputs: { x } }) => {
  if (x.data[0] === 0) await new Promise(() => setInterval(() => {}, 1000));
  return { y: { ...x, data: x.data.map((value) => 2 * value) } };
};
export const after = before;
`;

function makeThreads(t: TestContext, text = MODULE, timeoutMs = 60_000) {
  const file = path.join(temporaryDirectory(t, 'transform'), 'transform.mjs');
  fs.writeFileSync(file, text);
  const budget = new BodyBudget(64 * MIB, 16 * MIB);
  const log = createLogger('test', 'fatal');
  const threads = new TransformThreads({ entry: ENTRY, file, threads: 1, timeoutMs, budget, log });
  t.after(() => threads.close());
  return { threads, budget, file };
}

function call(value: number, step: 'before' | 'after' = 'before'): TransformCall {
  const data = new Uint8Array(Float32Array.of(value).buffer);
  const about = { step, id: undefined, tensors: [{ shape: [1], data }] };
  return { ...about, given: [tensor('x', 'FP32', [1])], wanted: [tensor('y', 'FP32', [-1])] };
}

const wanted = () => true;
const firstOf = (tensors: readonly { data: Uint8Array }[]) => Buffer.from(tensors[0]!.data).readFloatLE();

/** Fails unless nothing is counted any more. */
function assertNothingHeld(budget: BodyBudget): void {
  budget.take(budget.maxBytes);
  budget.give(budget.maxBytes);
}

test('a call gives what the module makes of it, and takes nothing of what it was given away', async (t) => {
  const { threads, budget } = makeThreads(t);
  const one = call(3);
  assert.equal(firstOf(await threads.call(one, wanted)), 6);
  assert.equal(firstOf(await threads.call(one, wanted)), 6);
  assertNothingHeld(budget);
});

test('so many calls wait and no more; what has been run already is never refused', async (t) => {
  const { threads, budget } = makeThreads(t);
  const hung = threads.call(call(0), wanted);
  const waiting = Array.from({ length: WAITING_MAX }, () => threads.call(call(1), wanted));
  const late = threads.call(call(2, 'after'), wanted);
  const pending = [hung, ...waiting, late].map((one) => one.catch((error: { code?: string }) => error.code));
  await assert.rejects(threads.call(call(1), wanted), { code: 'QUEUE_FULL', message: /raise transform\.threads/ });
  threads.close();
  for (const code of await Promise.all(pending)) assert.equal(code, 'TRANSFORM_FAILED');
  assertNothingHeld(budget);
});

test('calls that wait count their bytes, and those whose clients have left are not made', async (t) => {
  const { threads, budget } = makeThreads(t, MODULE, 400);
  const hung = threads.call(call(0), wanted);
  let here = true;
  const left = threads.call(call(1), () => here);
  const next = threads.call(call(5), wanted);
  assert.throws(() => budget.take(budget.maxBytes - 4), { code: 'QUEUE_FULL' });
  here = false;
  await assert.rejects(hung, { code: 'TRANSFORM_FAILED', message: /took longer than 400 ms/ });
  await assert.rejects(left, { code: 'CLIENT_CLOSED' });
  assert.equal(firstOf(await next), 10);
  assertNothingHeld(budget);
});

test('a module that cannot be loaded any more fails each call, and no other', async (t) => {
  const { threads, budget, file } = makeThreads(t);
  assert.equal(firstOf(await threads.call(call(1), wanted)), 2);
  const { threads: others } = makeThreads(t, 'syntax error');
  for (let round = 0; round < 2; round++) {
    await assert.rejects(others.call(call(1), wanted), { code: 'TRANSFORM_FAILED', message: /SyntaxError/ });
  }
  fs.rmSync(file);
  assert.equal(firstOf(await threads.call(call(2), wanted)), 4);
  assertNothingHeld(budget);
});
