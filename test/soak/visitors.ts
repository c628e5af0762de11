/**
 * Faults of clients: they leave too early, send what is no request, ask for too much. No process dies of them, and nobody else notices.
 */
import assert from 'node:assert/strict';
import { binaryRequest, infer, inferBytes, inferPath, jsonBody, jsonRequest } from '../support/exchange.ts';
import { GrpcClients, rawRequest } from '../support/grpc.ts';
import type { Random } from '../support/random.ts';
import { RawConnection, requestBytes } from '../support/raw.ts';
import { tensor } from '../support/tensor.ts';
import type { Fault, Scene } from './fault.ts';
import { pause } from './tally.ts';

const ANSWER_LIMIT_MS = 180_000;
/** Far more steps than `run_timeout_ms` of the model leaves time for. */
const ENDLESS = 100_000_000;
/** More than --max-body-bytes of the soak. */
const TOO_MANY_BYTES = 2 ** 26;
const VISITORS_MAX = 8;

const steps = (count: number) =>
  jsonBody(`{"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[${count}]}]}`);
const wide = binaryRequest(new Map([['x', tensor('FP32', [2, 1], Float32Array.of(1, 2))]]));

/** A whole request that cannot fail for its values. */
function plainRequest(random: Random): Buffer {
  const columns = random.int(1, 2000);
  const rows = tensor('FP32', [2, columns], new Float32Array(2 * columns).fill(random.int(0, 99)));
  return random.chance(0.3) ? inferBytes('wide', wide) : inferBytes('dynamic', binaryRequest(new Map([['x', rows]])));
}

/** Half a megabyte of JSON, which a thread reads. */
export const LARGE = inferBytes(
  'dynamic',
  jsonRequest(
    new Map([
      [
        'x',
        tensor(
          'FP32',
          [1, 60_000],
          Float32Array.from({ length: 60_000 }, (_, n) => n * 1111),
        ),
      ],
    ]),
  ),
);

/** A whole request of some kind. */
function someRequest(random: Random): Buffer {
  if (random.chance(0.1)) return LARGE;
  return random.chance(0.3) ? inferBytes('slow', steps(random.int(1, 300))) : plainRequest(random);
}

/** Several visitors at once, each on a connection of its own. What becomes of the connection is theirs; that the server may have died is not. */
function visit(one: (connection: RawConnection, random: Random) => Promise<void>): Fault['run'] {
  return async ({ server }, random) => {
    const visitors = Array.from({ length: random.int(1, VISITORS_MAX) }, async () => {
      const own = random.fork();
      const connection = await RawConnection.open(server.url);
      try {
        await one(connection, own);
      } finally {
        connection.destroy(own.chance(0.5));
      }
    });
    await Promise.all(visitors);
  };
}

const leaveWithin = visit(async (connection, random) => {
  const bytes = someRequest(random);
  await connection.write(bytes.subarray(0, random.int(0, bytes.length - 1)));
  await pause(random.int(0, 300));
});

const leaveWaiting = visit(async (connection, random) => {
  await connection.write(Buffer.concat(Array.from({ length: random.int(1, 4) }, () => someRequest(random))));
  await pause(random.int(0, 60));
});

const takeNothing = visit(async (connection, random) => {
  connection.pause();
  await connection.write(Buffer.concat(Array.from({ length: 3 }, () => inferBytes('wide', wide))));
  await pause(random.int(100, 2000));
});

const halfClose = visit(async (connection, random) => {
  const bytes = someRequest(random);
  await connection.write(bytes.subarray(0, random.int(0, bytes.length)));
  connection.endWriting();
  await pause(random.int(0, 200));
});

/** Noise, or a request with some of its bytes changed. Whatever is answered is no fault of the server. */
const malformed = visit(async (connection, random) => {
  const bytes = random.chance(0.3) ? Buffer.from(random.bytes(random.int(1, 4000))) : plainRequest(random);
  for (let n = random.int(1, 20); n > 0; n--) bytes[random.int(0, bytes.length - 1)] = random.int(0, 255);
  await connection.write(bytes);
  try {
    const { status } = await connection.response(random.int(50, 500), 'POST');
    assert(status < 500 || status === 501 || status === 503, `noise was answered ${status}`);
  } catch (error) {
    if (error instanceof assert.AssertionError) throw error;
    // It waits for the rest, or the connection was closed.
  }
});

/** A body that comes in pieces, with pauses: it is as good as any other. */
async function trickle({ server }: Scene, random: Random): Promise<void> {
  const connection = await RawConnection.open(server.url);
  try {
    const bytes = inferBytes('slow', steps(5));
    for (let at = 0; at < bytes.length; at += 20) {
      await connection.write(bytes.subarray(at, at + 20));
      await pause(random.int(0, 100));
    }
    await assertStatus(connection.response(ANSWER_LIMIT_MS, 'POST'), [200]);
  } finally {
    connection.destroy();
  }
}

/** Whether an answer is one of these; it may be refused for a while, or be lost with its connection, if processes die meanwhile. */
async function assertStatus(answer: Promise<{ status: number; body: Buffer }>, statuses: readonly number[]) {
  let found: { status: number; body: Buffer };
  try {
    found = await answer;
  } catch (error) {
    if (/connection ended/.test((error as Error).message)) return;
    throw error;
  }
  assert([...statuses, 503].includes(found.status), `${found.status} instead of ${statuses}: ${found.body}`);
}

const quotient = (a: number, b: number) => {
  const input = (name: string, value: number) =>
    `{"name":"${name}","datatype":"INT32","shape":[1,1],"data":[${value}]}`;
  return jsonBody(`{"inputs":[${input('a', a)},${input('b', b)}]}`);
};

async function tooLarge({ server }: Scene): Promise<void> {
  const connection = await RawConnection.open(server.url);
  try {
    await connection.write(requestBytes('POST', inferPath('rows'), [['Content-Length', String(TOO_MANY_BYTES)]]));
    await assertStatus(connection.response(ANSWER_LIMIT_MS, 'POST'), [413]);
  } finally {
    connection.destroy();
  }
}

/** Calls over gRPC that are cancelled, in any part of their way. */
async function cancelCalls({ server }: Scene, random: Random): Promise<void> {
  let close: () => void | Promise<void> = () => {};
  const client = new GrpcClients({ after: (action) => (close = action) }, server).open();
  const steps = new Map([['steps', tensor('INT64', [1, 1], BigInt64Array.of(200n))]]);
  await Promise.all(
    Array.from({ length: random.int(1, 20) }, async () => {
      const { call, answer } = client.start('ModelInfer', rawRequest('slow', steps));
      const settled = answer.catch(() => {});
      await pause(random.int(0, 50));
      call.cancel();
      await settled;
    }),
  );
  await close();
}

/** Noise where HTTP/2 is spoken, now and then behind a preface that is right. */
async function grpcNoise({ server }: Scene, random: Random): Promise<void> {
  const connection = await RawConnection.open(`http://${server.address('grpc')}`);
  try {
    if (random.chance(0.5)) await connection.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
    await connection.write(random.bytes(random.int(1, 2000)));
    await pause(random.int(0, 300));
  } finally {
    connection.destroy(random.chance(0.5));
  }
}

/** More at once than the callers ever send. */
async function burst({ server }: Scene, random: Random): Promise<void> {
  const request = inferBytes(
    'arithmetic_int32',
    jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,4],"data":[98,1,2,97]}]}'),
  );
  const connections = await Promise.all(Array.from({ length: 8 }, () => RawConnection.open(server.url)));
  const perConnection = random.int(10, 100);
  await Promise.all(
    connections.map(async (connection) => {
      try {
        await connection.write(Buffer.concat(Array.from({ length: perConnection }, () => request)));
        for (let n = 0; n < perConnection; n++) {
          await assertStatus(connection.response(ANSWER_LIMIT_MS, 'POST'), [200, 429]);
        }
      } finally {
        connection.destroy();
      }
    }),
  );
}

export const VISITORS: readonly Fault[] = [
  { name: 'clients that leave within a request', run: leaveWithin },
  { name: 'clients that leave before the answer', run: leaveWaiting },
  { name: 'clients that take nothing of the answer', run: takeNothing },
  { name: 'clients that close their side', run: halfClose },
  { name: 'malformed bytes', run: malformed },
  { name: 'a body in pieces', run: trickle },
  { name: 'a body that is too large', run: tooLarge },
  {
    name: 'a run that fails',
    run: ({ server }) => assertStatus(infer(server.url, 'crash', quotient(1, 0)), [500]),
  },
  {
    name: 'a run that does not end',
    run: ({ server }) => assertStatus(infer(server.url, 'slow', steps(ENDLESS)), [504]),
  },
  {
    name: 'a deadline that passes',
    run: async ({ server }, random) => {
      const timeout = random.int(100, 20_000);
      const request = jsonBody(
        `{"parameters":{"timeout":${timeout}},"inputs":[{"name":"steps","datatype":"INT64","shape":[1,1],"data":[400]}]}`,
      );
      // 429: it would come too late behind those that wait already.
      await assertStatus(infer(server.url, 'slow', request), [200, 429, 504]);
    },
  },
  { name: 'a burst', run: burst },
  { name: 'calls that are cancelled', run: cancelCalls },
  { name: 'noise at the gRPC port', run: grpcNoise },
  { name: 'SIGHUP', run: async ({ server }) => server.signal('SIGHUP') },
];
