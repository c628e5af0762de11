/** A server under test with the models of a benchmark, and requests for them. */
import { encodeRequest, requestBody } from '../../src/client/request.ts';
import { type CleanUp, type ModelEntry, makeRepository } from '../support/repository.ts';
import { startServer, type TestServer } from '../support/server.ts';

/** Starts a server for fixtures, with nothing but warnings in its log; it stops with `cleanUp`. */
export function serve(
  cleanUp: CleanUp,
  models: Readonly<Record<string, ModelEntry>>,
  options: { readonly grpc?: boolean } = {},
): Promise<TestServer> {
  const { dir } = makeRepository(cleanUp, models);
  return startServer(cleanUp, { ...options, repository: dir, args: ['--log-level', 'warn'] });
}

/** Process ids of a server by role; a second one of a role is `role-2`. */
export async function processesOf(server: TestServer): Promise<Map<string, number>> {
  const { processes } = await server.status();
  const pids = new Map<string, number>();
  for (const { role, pid } of processes) {
    let name = role;
    for (let n = 2; pids.has(name); n++) name = `${role}-${n}`;
    pids.set(name, pid);
  }
  return pids;
}

export interface Request {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
}

/** One row for a model with the input `x` [N, columns] FP32 and the output `y`; both tensors in binary, or both in JSON. */
export function oneRow(server: TestServer, model: string, columns: number, binary: boolean): Request {
  const data = Float32Array.from({ length: columns }, (_, n) => Math.sin(n + 1));
  const inputs = [{ name: 'x', datatype: 'FP32', shape: [1, columns], data } as const];
  const encoded = encodeRequest({ inputs, ...(binary ? { outputs: ['y'] } : {}) }, binary);
  return { url: `${server.url}/v2/models/${model}/infer`, ...requestBody(encoded, Number.POSITIVE_INFINITY) };
}
