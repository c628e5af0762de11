/** Closed and open loops against servers that answer, refuse, come late, or never answer. */
import assert from 'node:assert/strict';
import type net from 'node:net';
import { test } from 'node:test';
import { type RunLimits, type RunResult, runClosedLoop, runOpenLoop } from '../../../src/load/run.ts';
import { Sender } from '../../../src/load/sender.ts';
import { Tally } from '../../../src/load/tally.ts';
import { sendOne } from '../../../src/load/target.ts';
import { always, answerBytes, loadServer } from './load-server.ts';

const LIMITS: RunLimits = {
  warmUpMs: 0,
  durationMs: Number.POSITIVE_INFINITY,
  requests: Number.POSITIVE_INFINITY,
  timeoutMs: 30_000,
  sloMs: undefined,
};
const CONNECTIONS = 100;
const constant = (ratePerS: number) => ({ kind: 'constant', ratePerS, seed: 1 }) as const;

const outcomes = ({ ok, otherOutcomes }: RunResult): Record<string, number> => ({
  ok: ok.count,
  ...Object.fromEntries(otherOutcomes.map(({ name, count }) => [name, count])),
});

test('a closed loop has as many requests under way as it has clients, and sends as many as asked', async (t) => {
  // Answers only once all four have asked: with fewer under way the run would not end.
  const held: net.Socket[] = [];
  const server = await loadServer(t, (socket) => {
    assert(!held.includes(socket), 'a request before the answer to the one before');
    if (held.push(socket) < 4) return;
    for (const one of held.splice(0)) one.write(answerBytes(200));
  });
  const result = await runClosedLoop(server.target, { ...LIMITS, requests: 200 }, 4);
  assert.deepEqual(outcomes(result), { ok: 200 });
  assert.equal(result.requests, 200);
  assert.equal(server.requests, 200);
  assert.equal(server.connections, 4);
  assert(result.okPerS > 0 && result.generator.cpuUsPerRequest > 0 && result.generator.busy > 0);
});

test('warm-up is sent but does not count', async (t) => {
  const server = await loadServer(t, always(200));
  const closed = await runClosedLoop(server.target, { ...LIMITS, warmUpMs: 50, requests: 20 }, 1);
  assert.deepEqual(outcomes(closed), { ok: 20 });
  assert(server.requests > 20);
  const before = server.requests;
  // 25 arrivals in the warm-up, the 25th at its end.
  const open = await runOpenLoop(server.target, { ...LIMITS, warmUpMs: 50, requests: 20 }, constant(500), CONNECTIONS);
  assert.deepEqual(outcomes(open), { ok: 20 });
  assert.equal(server.requests - before, 24 + 20);
});

test('an open loop ends with its duration, and counts what was meant for it', async (t) => {
  const server = await loadServer(t, always(200));
  const result = await runOpenLoop(server.target, { ...LIMITS, durationMs: 200 }, constant(1000), CONNECTIONS);
  assert.deepEqual(outcomes(result), { ok: 199 });
  assert.equal(result.measuredMs, 200);
  // A plan with nothing for it ends at once.
  const none = await runOpenLoop(server.target, { ...LIMITS, durationMs: 200 }, constant(0.001), CONNECTIONS);
  assert.deepEqual([none.requests, none.okPerS], [0, 0]);
});

test('a trace ends the run by itself', async (t) => {
  const server = await loadServer(t, always(200));
  const plan = { kind: 'trace', timesMs: Float64Array.of(0, 0, 1, 30), stretch: 1 } as const;
  const result = await runOpenLoop(server.target, LIMITS, plan, CONNECTIONS);
  assert.deepEqual(outcomes(result), { ok: 4 });
  assert(result.measuredMs >= 30);
});

test('a server that always refuses is measured, and told apart from one that serves', async (t) => {
  const server = await loadServer(t, always(429, '{"error":"the queue is full"}', 'Retry-After: 1'));
  for (const run of [
    runClosedLoop(server.target, { ...LIMITS, requests: 50, sloMs: 1000 }, 2),
    runOpenLoop(server.target, { ...LIMITS, requests: 50, sloMs: 1000 }, constant(1000), CONNECTIONS),
  ]) {
    const result = await run;
    assert.deepEqual(outcomes(result), { ok: 0, 429: 50 });
    assert.deepEqual([result.okPerS, result.goodPerS, result.goodCount], [0, 0, 0]);
    const [refused] = result.otherOutcomes;
    assert.equal(refused!.sample, '{"error":"the queue is full"}');
    assert.equal(refused!.latency.count, 50);
  }
});

test('a server that never answers costs each request its time limit, and no run its end', async (t) => {
  const server = await loadServer(t, () => {});
  const limits = { ...LIMITS, timeoutMs: 60 };
  const closed = await runClosedLoop(server.target, { ...limits, durationMs: 100 }, 3);
  assert.equal(closed.ok.count, 0);
  assert.equal(outcomes(closed).timeout, closed.requests);
  assert(closed.requests >= 3);
  const open = await runOpenLoop(server.target, { ...limits, requests: 30 }, constant(1000), CONNECTIONS);
  assert.deepEqual(outcomes(open), { ok: 0, timeout: 30 });
  assert(open.otherOutcomes[0]!.latency.maxMs >= 60);
});

test('with a server that answers nobody, requests that find no connection are given up too', async (t) => {
  const server = await loadServer(t, () => {});
  const result = await runOpenLoop(server.target, { ...LIMITS, timeoutMs: 60, requests: 30 }, constant(1000), 2);
  const { timeout = 0, unsent = 0 } = outcomes(result);
  assert.equal(timeout + unsent, 30);
  assert(timeout >= 2 && unsent > 0, JSON.stringify(outcomes(result)));
});

// A generator that waits for a slow server before it sends more would see one slow request here, and call the other ones fast.
test('what a stall of the server costs is in the latency of every request that was meant for it', async (t) => {
  const stallMs = 150;
  const server = await loadServer(t, (socket, request) => {
    if (request > 1) socket.write(answerBytes(200));
    else setTimeout(() => socket.write(answerBytes(200)), stallMs);
  });
  // One connection, an arrival each 5 ms: those of the stall can only be sent after it.
  const result = await runOpenLoop(server.target, { ...LIMITS, requests: 100 }, constant(200), 1);
  assert.deepEqual(outcomes(result), { ok: 100 });
  assert(result.ok.maxMs >= stallMs - 5, `${result.ok.maxMs} ms`);
  // 29 arrivals waited from 145 ms down to 5 ms: at least a quarter of all waited 20 ms or longer.
  assert(result.ok.percentilesMs.get(90)! >= stallMs / 2 - 5, `p90 ${result.ok.percentilesMs.get(90)} ms`);
  assert(result.lateness.maxMs >= stallMs - 15, `${result.lateness.maxMs} ms late`);
});

test('a late answer is measured in full, and is not good', async (t) => {
  const server = await loadServer(t, (socket, request) => {
    setTimeout(() => socket.write(answerBytes(200)), request === 3 ? 40 : 0);
  });
  const result = await runClosedLoop(server.target, { ...LIMITS, requests: 5, sloMs: 39 }, 1);
  assert.equal(result.ok.count, 5);
  assert(result.goodCount! <= 4);
  assert(result.ok.maxMs >= 39);
});

test('connections that the server ends are replaced, and what they carried is counted by its fault', async (t) => {
  const closing = await loadServer(t, (socket) => {
    socket.end(answerBytes(200, '{}', 'Connection: close'));
  });
  const closed = await runClosedLoop(closing.target, { ...LIMITS, requests: 20 }, 2);
  assert.deepEqual(outcomes(closed), { ok: 20 });
  assert.equal(closing.connections, 20);

  const dropping = await loadServer(t, (socket, request) => {
    if (request % 2 === 0) socket.write(answerBytes(200));
    else if (request % 4 === 1) socket.end();
    else socket.write('220 mail.example.org ESMTP\r\n\r\n');
  });
  const dropped = await runClosedLoop(dropping.target, { ...LIMITS, requests: 20 }, 1);
  const { ok, ...others } = outcomes(dropped);
  assert.equal(ok, 10);
  assert.deepEqual(
    Object.keys(others)
      .map((name) => name.slice(0, 20))
      .sort(),
    ['closed by the server', 'not an HTTP answer: '],
  );
});

test('a connection that the server closes while it is idle is not used again', async (t) => {
  let closed = () => {};
  const server = await loadServer(t, (socket) => {
    socket.end(answerBytes(200));
    // Both sides have closed it then.
    socket.once('close', () => closed());
  });
  const tally = new Tally(0, Number.POSITIVE_INFINITY, undefined);
  const limits = { connectionsMax: 1, timeoutMs: 30_000 };
  const sender = new Sender(server.target, limits, tally, performance.now(), () => {});
  t.after(() => sender.stop());
  for (let n = 0; n < 3; n++) {
    const isClosed = new Promise<void>((resolve) => {
      closed = resolve;
    });
    assert.equal(sender.send(0, 0), true);
    await isClosed;
  }
  assert.deepEqual([tally.ok.count, tally.otherCount, server.connections], [3, 0, 3]);
});

test('a server that is not there is an outcome, and is not hammered', async (t) => {
  const { target } = await loadServer(t, always(200));
  const result = await runClosedLoop({ ...target, port: 1 }, { ...LIMITS, requests: 5 }, 1);
  assert.deepEqual(outcomes(result), { ok: 0, ECONNREFUSED: 5 });
  // Four pauses of 10 ms between five tries.
  assert(result.measuredMs >= 35, `${result.measuredMs} ms`);
});

test('a run can be interrupted: what was measured stays, what is under way is said', async (t) => {
  const interrupt = new AbortController();
  const server = await loadServer(t, (socket, request) => {
    if (request <= 10) socket.write(answerBytes(200));
    else interrupt.abort();
  });
  const { signal } = interrupt;
  const closed = await runClosedLoop(server.target, LIMITS, 1, { signal });
  assert.deepEqual(outcomes(closed), { ok: 10, interrupted: 1 });
  assert.equal(closed.interrupted, true);
  const open = await runOpenLoop(server.target, LIMITS, constant(1000), CONNECTIONS, { signal });
  assert.deepEqual([open.requests, open.interrupted], [0, true]);
});

test('progress is shown while a run goes on, and ended', async (t) => {
  const server = await loadServer(t, always(200));
  const seen: number[] = [];
  let ended = 0;
  const progress = {
    everyMs: 5,
    show: ({ tally, elapsedMs }: { tally: { ok: { count: number } }; elapsedMs: number }) => {
      assert(elapsedMs > 0);
      seen.push(tally.ok.count);
    },
    end: () => void ended++,
  };
  await runClosedLoop(server.target, { ...LIMITS, durationMs: 100 }, 1, { progress });
  assert.equal(ended, 1);
  assert(seen.length > 0 && seen.every((count, index) => count >= (seen[index - 1] ?? 0)), String(seen));
});

test('the first request tells the address, the status and what was said', async (t) => {
  const refusing = await loadServer(t, always(400, 'bad shape'));
  assert.deepEqual(await sendOne(refusing.target, 10_000), { address: '127.0.0.1', status: 400, text: 'bad shape' });
  assert.match(
    refusing.target.request.toString(),
    /^POST \/base\/v2\/models\/m\/infer HTTP\/1\.1\r\nHost: 127\.0\.0\.1:/,
  );
  const silent = await loadServer(t, () => {});
  const { status, text } = await sendOne(silent.target, 20);
  assert.deepEqual([status, text], [undefined, 'no answer within 20 ms']);
  assert.equal((await sendOne({ ...silent.target, port: 1 }, 10_000)).text, 'ECONNREFUSED');
});
