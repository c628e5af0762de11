/** Models loaded and unloaded on command, as tests ask for it, and models whose answers tell which file is served. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { type Answer, infer, json, jsonBody, send } from './exchange.ts';
import type { TestRepository } from './repository.ts';
import type { TestServer } from './server.ts';

/** An entry of the repository index. */
export interface IndexEntry {
  readonly name: string;
  readonly version: string;
  readonly state: string;
  readonly reason: string;
}

export class ControlledServer {
  readonly #server: TestServer;
  readonly #repository: TestRepository;

  constructor(server: TestServer, repository: TestRepository) {
    this.#server = server;
    this.#repository = repository;
  }

  post(path: string, body = ''): Promise<Answer> {
    const headers = body === '' ? [] : ([['Content-Type', 'application/json']] as const);
    return send(this.#server.url, path, { headers, body: Buffer.from(body) });
  }

  /** @param parameters of the request, such as `config`. */
  load(model: string, parameters?: Readonly<Record<string, unknown>>): Promise<Answer> {
    return this.post(
      `/v2/repository/models/${model}/load`,
      parameters === undefined ? '' : JSON.stringify({ parameters }),
    );
  }

  unload(model: string): Promise<Answer> {
    return this.post(`/v2/repository/models/${model}/unload`, '{"parameters":{"unload_dependents":true}}');
  }

  /** Asks a model of plusModel() for the sum of 10 and its addend. */
  ask(model: string, version?: string): Promise<Answer> {
    return infer(this.#server.url, model, TEN, version);
  }

  async valueOfTen(model: string, version?: string): Promise<number> {
    const answer = await this.ask(model, version);
    assert.equal(answer.status, 200, answer.body.toString());
    return valueIn(answer);
  }

  async indexOf(model: string): Promise<IndexEntry[]> {
    const entries = JSON.parse((await this.post('/v2/repository/index')).body.toString()) as IndexEntry[];
    return entries.filter(({ name }) => name === model);
  }

  /** Puts a file in the place of another in one step. */
  replaceFile(model: string, version: string, bytes: Uint8Array): void {
    const file = this.#repository.writeFile([model, version, 'model.onnx.new'], bytes);
    fs.renameSync(file, this.#repository.path(model, version, 'model.onnx'));
  }
}

/** A request to a model of plusModel(). */
export const TEN = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[10]}]}');

/** What such a model has answered. */
export function valueIn(answer: Answer): number {
  return (json(answer).outputs as { data: number[] }[])[0]!.data[0]!;
}

/** A load or unload succeeded. */
export function assertDone(answer: Answer): void {
  assert.equal(answer.status, 200, answer.body.toString());
  assert.equal(answer.body.length, 0);
}
