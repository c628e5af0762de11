import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { BatchportError } from '../../../src/config/errors.ts';
import { BodyBudget, BodyRead } from '../../../src/ingress/body.ts';

const MIB = 2 ** 20;

/** Starts a read of a chunked body whose pieces the test emits. */
function startRead(declaredBytes = -1) {
  const request = new EventEmitter();
  const bodies: Buffer[] = [];
  const receiver = {
    bodyRead: (body: Buffer) => bodies.push(body),
    bodyFailed: (error: BatchportError) => assert.fail(error),
  };
  const read = new BodyRead(request as IncomingMessage, declaredBytes, new BodyBudget(64 * MIB, 64 * MIB), receiver);
  return { request, read, bodies };
}

/** A body in pieces of these lengths, again and again, and the same in one piece. */
function pieces(lengths: readonly number[], bytes: number): { parts: Buffer[]; whole: Buffer } {
  const whole = Buffer.from(Uint8Array.from({ length: bytes }, (_, n) => n * 31 + (n >> 8)));
  const parts: Buffer[] = [];
  for (let at = 0, n = 0; at < bytes; n++) {
    const end = Math.min(bytes, at + lengths[n % lengths.length]!);
    parts.push(whole.subarray(at, end));
    at = end;
  }
  return { parts, whole };
}

for (const lengths of [[1], [4095], [1, 4096], [5000, 1, 1, 16_384, 3, 4095, 4095, 4095, 4095, 4095], [70_000]]) {
  for (const declared of [true, false]) {
    test(`a body in pieces of ${lengths.join(', ')} bytes is put together${declared ? ' as soon as it is whole' : ''}`, () => {
      const { parts, whole } = pieces(lengths, 150_001);
      const { request, bodies } = startRead(declared ? whole.length : -1);
      for (const part of parts) request.emit('data', part);
      if (!declared) request.emit('end');
      assert.equal(bodies.length, 1);
      assert(bodies[0]!.equals(whole));
    });
  }
}

test('a body that comes byte by byte takes memory for its bytes only', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const { request, read } = startRead();
  const source = Buffer.alloc(1000, 1);
  collect();
  const before = process.memoryUsage().heapUsed;
  for (let n = 0; n < MIB; n++) request.emit('data', source.subarray(n % 1000, (n % 1000) + 1));
  collect();
  // What remembers a piece takes 50 bytes and more.
  assert(process.memoryUsage().heapUsed - before < 10 * MIB);
  read.stop();
});
