/**
 * What must be true of a server once nothing is going on: no slab taken, no row queued, no descriptor more than before. Waits for it, with a limit, since
 * clients' connections and abandoned rows take a moment to go.
 */
import assert from 'node:assert/strict';
import { openFiles, tcpConnections } from './process-table.ts';
import type { LogLine, ServerStatus, TestServer } from './server.ts';

const LIMIT_MS = 20_000;
const POLL_MS = 10;

export interface ModelStatus {
  readonly name: string;
  readonly version: string;
  readonly state: string;
  readonly reason: string;
  readonly devices: readonly { readonly device: string; readonly state: string; readonly reason: string }[];
  readonly queue: null | {
    readonly rows_queued: number;
    readonly rows_running: number;
    readonly committed_bytes: number;
    readonly used_bytes: number;
    readonly slabs: Readonly<Record<string, number>>;
  };
  readonly rows: number;
  readonly rows_requeued: number;
  readonly rows_lost: number;
}

export interface ChildStatus {
  readonly role: string;
  readonly pid: number;
  readonly device: string | null;
  readonly slot: number | null;
  readonly state: string;
  readonly epoch: number;
  readonly restarts: number;
  readonly rss_bytes: number;
}

export function modelsOf(status: ServerStatus): readonly ModelStatus[] {
  return status.models as readonly ModelStatus[];
}

export function processesOf(status: ServerStatus): readonly ChildStatus[] {
  return status.processes as unknown as readonly ChildStatus[];
}

/** Asks until the answer is no complaint any more. @throws Error with the last complaint. */
export async function eventually(complaint: () => Promise<string | undefined>, limitMs = LIMIT_MS): Promise<void> {
  const deadline = Date.now() + limitMs;
  for (;;) {
    const problem = await complaint();
    if (problem === undefined) return;
    if (Date.now() > deadline) assert.fail(`${problem}, still after ${limitMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Waits until every queue is empty and all of its memory is free. */
export function assertIdle(server: TestServer, limitMs = LIMIT_MS): Promise<void> {
  return eventually(async () => {
    const busy = modelsOf(await server.status()).filter(
      ({ queue }) => queue !== null && (queue.used_bytes > 0 || taken(queue.slabs) > 0),
    );
    return busy.length === 0
      ? undefined
      : `queues in use: ${JSON.stringify(busy.map(({ name, queue }) => [name, queue]))}`;
  }, limitMs);
}

function taken(slabs: Readonly<Record<string, number>>): number {
  return Object.entries(slabs).reduce((sum, [state, count]) => sum + (state === 'free' ? 0 : count), 0);
}

/** Waits until a model's status fits. */
export function untilModel(
  server: TestServer,
  name: string,
  fits: (model: ModelStatus) => boolean,
  limitMs = LIMIT_MS,
): Promise<void> {
  return eventually(async () => {
    const model = modelsOf(await server.status()).find((one) => one.name === name);
    return model !== undefined && fits(model) ? undefined : `the model is not so far: ${JSON.stringify(model)}`;
  }, limitMs);
}

/** Waits until rows of the model are being run. */
export function untilRunning(server: TestServer, name: string, rows = 1): Promise<void> {
  return untilModel(server, name, ({ queue }) => queue !== null && queue.rows_running >= rows);
}

/** Waits until every process of the server is there and at work, with all models loaded where they belong. */
export function assertAllAtWork(server: TestServer, limitMs = LIMIT_MS): Promise<void> {
  return eventually(async () => {
    const status = await server.status();
    const absent = processesOf(status).filter(({ role, state }) => role !== 'supervisor' && state !== 'ready');
    if (absent.length > 0) return `not at work: ${JSON.stringify(absent.map(({ role, state }) => [role, state]))}`;
    const coming = modelsOf(status).flatMap(({ name, devices }) =>
      devices
        .filter(({ state }) => state === 'waiting' || state === 'loading')
        .map(({ device }) => `${name} on ${device}`),
    );
    if (coming.length > 0) return `not loaded: ${coming.join(', ')}`;
    const { ready, reason } = status.server as { ready: boolean; reason: string };
    return ready ? undefined : `the server is not ready: ${reason}`;
  }, limitMs);
}

/** What the open descriptors of each process point at, by its role and place, so that a restarted process is compared with the one before it. */
export type Descriptors = ReadonlyMap<string, readonly string[]>;

export async function countDescriptors(server: TestServer): Promise<Descriptors> {
  return descriptorsOf(await server.status());
}

function descriptorsOf(status: ServerStatus): Descriptors {
  return new Map(
    processesOf(status).map(({ role, pid, device, slot }) => [
      `${role} ${device ?? slot ?? ''}`,
      // Without the numbers that tell one pipe from another.
      openFiles(pid).map((file) => file.replace(/\[\d+\]$/, '')),
    ]),
  );
}

/** Waits until no process has more descriptors than before. */
export function assertNoMoreDescriptors(server: TestServer, before: Descriptors): Promise<void> {
  return eventually(async () => {
    const status = await server.status();
    const more = [...descriptorsOf(status)].flatMap(([place, files]) => {
      const known = before.get(place) ?? [];
      return files.length > known.length ? [`${place}: ${added(known, files).join(', ')}`] : [];
    });
    if (more.length === 0) return undefined;
    const connections = processesOf(status).flatMap(({ pid }) => tcpConnections(pid));
    return `more descriptors than before: ${more.join('; ')}; connections: ${JSON.stringify(connections)}`;
  });
}

/** Items that are more often in one list than in the other. */
function added(before: readonly string[], after: readonly string[]): string[] {
  const known = [...before];
  return after.filter((item) => {
    const at = known.indexOf(item);
    if (at >= 0) known.splice(at, 1);
    return at < 0;
  });
}

/** Lines of the log that tell of something wrong. */
export function complaints(server: TestServer): readonly LogLine[] {
  return server.logs.filter(({ level }) => ['warn', 'error', 'fatal'].includes(String(level)));
}
