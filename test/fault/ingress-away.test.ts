/**
 * Fault: for a while there is no ingress process at all, and clients come in a crowd.
 *
 * Safety: their connections are made and wait, in the backlog of the socket that the supervisor holds; none is refused or left without an answer to its first packet.
 * Liveness: the next process answers them all.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ChildHook } from '../support/child-hook.ts';
import { infer, inferBytes, jsonBody } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle, assertNoMoreDescriptors, countDescriptors } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

/** More than the 511 that node asks for by itself, fewer than the 1024 of the server. */
const CONNECTIONS = 800;
const CONNECT_LIMIT_MS = 20_000;
const ANSWER_LIMIT_MS = 60_000;

const hook = new ChildHook({ after });
const repository = makeRepository({ after }, ['rows']);
const server = launchServer({ after }, { repository: repository.dir, env: hook.env });

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

/** A packet that the kernel dropped is sent again later and later: that takes longer than the limit. */
async function openWithin(limitMs: number): Promise<RawConnection> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no connection within ${limitMs} ms`)), limitMs);
  });
  try {
    return await Promise.race([RawConnection.open(server.url), late]);
  } finally {
    clearTimeout(timer);
  }
}

// Story: the sockets took half of the connections that they were meant to, since node passed the option over.
test('a crowd that comes while no ingress process is there waits, and is answered by the next one', async () => {
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  const descriptors = await countDescriptors(server);
  const [ingress] = await server.pids('ingress');
  hook.holdAtStart('ingress');
  process.kill(ingress!, 'SIGKILL');
  await server.log(({ msg, childPid }) => msg === 'ingress process ended' && childPid === ingress);
  const crowd = await Promise.all(Array.from({ length: CONNECTIONS }, () => openWithin(CONNECT_LIMIT_MS)));
  for (const connection of crowd) await connection.write(inferBytes('rows', ROWS));
  hook.letGo('ingress');
  for (const connection of crowd) {
    assert.equal((await connection.response(ANSWER_LIMIT_MS, 'POST')).status, 200);
    connection.destroy();
  }
  await assertAllAtWork(server);
  await assertIdle(server);
  await assertNoMoreDescriptors(server, descriptors);
});
