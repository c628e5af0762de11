/**
 * What clients ask of the server and the supervisor does: loading and unloading models, regions of shared memory. Answered when it is done. One place for both
 * protocols.
 *
 * Bound: PENDING_MAX requests that wait for the supervisor; a configuration of MODEL_CONFIG_BYTES_MAX.
 */
import { BatchportError, ERRORS, type ErrorCode } from '../config/errors.ts';
import { MODEL_CONFIG_BYTES_MAX } from '../config/model-config-schema.ts';
import type { ModelControlMode } from '../config/settings.ts';
import type { ControlRequest, FromIngress, RegionRequest, ToIngress } from '../protocol/control.ts';
import { jsonObject } from './control-body.ts';

const PENDING_MAX = 256;

/** Parameters of a request by their names, unchecked. */
export type ControlParameters = ReadonlyMap<string, unknown>;

interface Pending {
  readonly resolve: () => void;
  readonly reject: (error: BatchportError) => void;
}

export class RemoteControl {
  readonly #mode: ModelControlMode;
  readonly #send: (message: FromIngress) => void;
  readonly #pending = new Map<number, Pending>();
  #last = 0;

  constructor(mode: ModelControlMode, send: (message: FromIngress) => void) {
    this.#mode = mode;
    this.#send = send;
  }

  /** Whether clients may ask. */
  get open(): boolean {
    return this.#mode === 'explicit';
  }

  /** @throws BAD_REQUEST where clients may not ask */
  requireOpen(): void {
    if (this.open) return;
    const instead = this.#mode === 'poll' ? 'it looks at its repository by itself' : 'its repository is read at start';
    throw new BatchportError(
      'BAD_REQUEST',
      `Models cannot be loaded or unloaded on command by this server: ${instead} (--model-control-mode ${this.#mode}).`,
    );
  }

  /** Loads or unloads a model. Settled when it has been done. @throws BatchportError */
  async request(action: 'load' | 'unload', model: string, parameters: ControlParameters): Promise<void> {
    this.requireOpen();
    const config = action === 'load' ? configOf(parameters) : undefined;
    await this.#ask({ action, model, ...(config === undefined ? {} : { config }) });
  }

  /** Settled when requests may name the region, at whatever process of the server they arrive. @throws BatchportError */
  async registerRegion(region: RegionRequest): Promise<void> {
    await this.#ask({ action: 'register-region', region });
  }

  /** Settled when the region is used no more; without a name all of them. @throws BatchportError */
  async unregisterRegion(name: string | undefined): Promise<void> {
    await this.#ask({ action: 'unregister-region', ...(name === undefined ? {} : { name }) });
  }

  /** Settled when every process of the server has them. @throws BatchportError */
  async changeLogging(changes: Readonly<Record<string, unknown>>): Promise<void> {
    await this.#ask({ action: 'change-logging', changes });
  }

  #ask(request: ControlRequest): Promise<void> {
    if (this.#pending.size >= PENDING_MAX) {
      throw new BatchportError('QUEUE_FULL', 'Too much waits to be done by the server. Retry later.');
    }
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#send({ type: 'control', id, request });
    });
  }

  /** The supervisor has answered. */
  answered({ id, error }: Extract<ToIngress, { type: 'controlled' }>): void {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (error === undefined) pending?.resolve();
    else pending?.reject(new BatchportError(isErrorCode(error.code) ? error.code : 'INTERNAL', error.message));
  }
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERRORS, code);
}

/** The configuration given with a load. @throws BAD_REQUEST for other parameters than that */
function configOf(parameters: ControlParameters): string | undefined {
  for (const name of parameters.keys()) {
    if (name === 'config') continue;
    const reason = name.startsWith('file:')
      ? 'files are taken from the repository of the server only'
      : "a load takes the parameter 'config' only";
    throw new BatchportError('BAD_REQUEST', `The load has a parameter that it cannot have: ${reason}.`);
  }
  const config = parameters.get('config');
  if (config === undefined) return undefined;
  if (typeof config !== 'string') {
    throw new BatchportError('BAD_REQUEST', "The parameter 'config' must be a string with the text of a config.json.");
  }
  if (Buffer.byteLength(config) > MODEL_CONFIG_BYTES_MAX) {
    throw new BatchportError('BAD_REQUEST', `The parameter 'config' is longer than ${MODEL_CONFIG_BYTES_MAX} bytes.`);
  }
  return config;
}

/** The parameters in the JSON body of a request, which may be empty. @throws BAD_REQUEST */
export function controlParameters(body: Buffer): ControlParameters {
  if (body.length === 0) return new Map();
  const { parameters = {} } = jsonObject(body);
  if (typeof parameters !== 'object' || parameters === null || Array.isArray(parameters)) {
    throw new BatchportError('BAD_REQUEST', "'parameters' must be an object.");
  }
  return new Map(Object.entries(parameters));
}
