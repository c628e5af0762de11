/**
 * Fault: more connections than an ingress process, or the supervisor, may have descriptors for.
 *
 * Safety: no process dies, connections that are there already are served, those that are too many are closed instead of left waiting. Liveness: once some have left,
 * new ones are served; the supervisor always has descriptors for another process.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { infer, inferBytes, jsonBody } from '../support/exchange.ts';
import {
  assertAllAtWork,
  assertIdle,
  assertNoMoreDescriptors,
  countDescriptors,
  processesOf,
} from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { whyUnusable, wrapped } from '../support/wrapped.ts';

/** Hardly more than a server asks for. */
const DESCRIPTORS_MAX = 260;
const CONNECTIONS = 450;
const LIMIT = `ulimit -n ${DESCRIPTORS_MAX} && exec "$@"`;

const repository = makeRepository({ after }, ['rows']);
const skip = whyUnusable(['sh', '-c', LIMIT, 'sh', 'true']) ?? false;
const program = wrapped({ after }, ['sh', '-c', LIMIT, 'sh']);
const server = launchServer({ after }, { repository: repository.dir, program });

before(() => server.ready());

const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');

/** Whether a request on a connection is answered with 200; false when the connection has been closed. */
async function isServed(connection: RawConnection): Promise<boolean> {
  await connection.write(inferBytes('rows', ROWS));
  try {
    assert.equal((await connection.response(60_000, 'POST')).status, 200);
    return true;
  } catch (error) {
    assert.match((error as Error).message, /connection ended/);
    return false;
  }
}

test('connections beyond the descriptors there are get closed, the others are served, and so are new ones later', {
  skip,
}, async () => {
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  const descriptors = await countDescriptors(server);
  for (let round = 0; round < 2; round++) {
    const connections = await Promise.all(Array.from({ length: CONNECTIONS }, () => RawConnection.open(server.url)));
    const served = await Promise.all(connections.map(isServed));
    const count = served.filter((one) => one).length;
    assert(count > DESCRIPTORS_MAX / 2 && count < DESCRIPTORS_MAX, `${count} connections were served`);
    // Those that have one keep it.
    assert.equal(await isServed(connections[served.indexOf(true)]!), true);
    for (const connection of connections) connection.destroy();
    await assertNoMoreDescriptors(server, descriptors);
    assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  }
  assert(processesOf(await server.status()).every(({ restarts }) => restarts === 0));
  await assertIdle(server);
});

// Story: connections to the metrics port took the descriptors that the supervisor needs to start a process: a device that died then was given up, with no reason
// but that it could not be started.
test('a crowd at the metrics port does not keep a device that dies from being started again', { skip }, async () => {
  const { pid } = processesOf(await server.status()).find(({ role }) => role === 'device')!;
  const connections = await Promise.all(
    Array.from({ length: CONNECTIONS }, () => RawConnection.open(server.metricsUrl)),
  );
  try {
    process.kill(pid, 'SIGKILL');
    assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
  } finally {
    for (const connection of connections) connection.destroy();
  }
  const started = server.logs.filter(({ msg }) => msg === 'device process started');
  assert.equal(started.length, 2);
  await assertAllAtWork(server, 60_000);
  await assertIdle(server);
});
