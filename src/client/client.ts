/**
 * Client of the Open Inference Protocol v2 over HTTP, for batchport and every other server that speaks it.
 *
 *     import { Client } from 'batchport/client';
 *
 *     const client = new Client('http://127.0.0.1:8000');
 *     const result = await client.infer('mlp', {
 *       inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 64], data: new Float32Array(64) }],
 *       timeoutMs: 500,
 *     });
 *     console.log(result.output('y', 'FP32').data);
 *     await client.close();
 *
 * Tensors travel in binary; `binary: false` sends and asks for JSON, in which 64-bit integers keep all their digits. Every call has a time limit, is
 * tried again only where nothing can have happened yet (see `RetryPolicy`), and gives an answer only once it has been checked completely.
 *
 * A client owns its connections. `close()` waits for the calls under way and then ends them; `await using` does so by itself.
 */
import { assertSuccess, jsonBody } from './answer.ts';
import { Cancellation } from './cancellation.ts';
import { ConnectionError } from './errors.ts';
import { decodeModelMetadata, decodeServerMetadata, type ModelMetadata, type ServerMetadata } from './metadata.ts';
import type { ModelTypes, TypedRequest, TypedResult } from './model-types.ts';
import { decodeIndex, type RepositoryEntry } from './repository.ts';
import { encodeRequest, type InferRequest, requestBody } from './request.ts';
import { decodeResponse } from './response.ts';
import type { InferResult } from './result.ts';
import { DEFAULT_RETRY, type RetryPolicy, retryDelayMs } from './retry.ts';
import { type HttpAnswer, type HttpRequest, type TlsOptions, Transport } from './transport.ts';

export type { Datatype } from '../tensor/datatype.ts';
export type { AnyData, DataOf, InputDataOf } from './data.ts';
export { ConnectionError, type ConnectionErrorCode, InferenceError } from './errors.ts';
export type { ModelMetadata, ServerMetadata, TensorMetadata } from './metadata.ts';
export type { ModelTypes, TypedInput, TypedRequest, TypedResult } from './model-types.ts';
export type { RepositoryEntry } from './repository.ts';
export type { InferInput, InferRequest, Parameter, Parameters, RequestedOutput } from './request.ts';
export type { InferOutput, InferResult, OutputTensor } from './result.ts';
export type { RetryPolicy } from './retry.ts';
export type { TlsOptions } from './transport.ts';

/** A longer timer would fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export interface ClientOptions {
  /** Connections kept to the server at most; further calls wait for one. Default 32. */
  readonly connections?: number | undefined;
  /** Calls under way at most; a further one fails at once. Default 10,000. */
  readonly maxPending?: number | undefined;
  /** Limit of a call that names none; 0 for no limit. Default 60,000. */
  readonly timeoutMs?: number | undefined;
  /** Limit for making a connection; 0 for none but the call's own. Default 5,000. */
  readonly connectTimeoutMs?: number | undefined;
  /** Largest answer taken. Default 1 GiB. */
  readonly maxResponseBytes?: number | undefined;
  /** Whether tensors travel in binary when a call does not say. Default true. */
  readonly binary?: boolean | undefined;
  /** Changes to the retry policy; false turns retries off. Default 4 tries within 10 s. */
  readonly retry?: Partial<RetryPolicy> | false | undefined;
  /** Further headers of every request, such as Authorization. */
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** For https: certificates and the like. */
  readonly tls?: TlsOptions | undefined;
}

export interface CallOptions {
  /** Limit of the whole call, retries included; 0 for none. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface ModelCallOptions extends CallOptions {
  /** Version of the model; the server chooses when it is absent. */
  readonly version?: string | undefined;
}

export interface Health {
  /** The server's process is up. */
  readonly live: boolean;
  /** It takes inference requests. */
  readonly ready: boolean;
}

export class Client {
  /** Base URL, without a slash at the end. */
  readonly url: string;
  private readonly transport: Transport;
  private readonly basePath: string;
  private readonly headers: Readonly<Record<string, string>>;
  private readonly timeoutMs: number;
  private readonly maxPending: number;
  private readonly binary: boolean;
  private readonly retry: RetryPolicy;
  private pending = 0;
  private closing: Promise<void> | undefined;
  private onIdle: (() => void) | undefined;

  /**
   * @param url Address of the server, such as `http://127.0.0.1:8000`; a path is put before those of the protocol.
   * @throws TypeError for another kind of URL, RangeError for an impossible option.
   */
  constructor(url: string | URL, options: ClientOptions = {}) {
    const base = parseUrl(url);
    this.basePath = base.pathname.replace(/\/+$/, '');
    this.url = base.origin + this.basePath;
    this.headers = Object.fromEntries(
      Object.entries(options.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]),
    );
    this.timeoutMs = duration('timeoutMs', options.timeoutMs ?? 60_000);
    this.maxPending = count('maxPending', options.maxPending ?? 10_000);
    this.binary = options.binary ?? true;
    this.retry = retryPolicy(options.retry);
    this.transport = new Transport(base.origin, {
      connections: count('connections', options.connections ?? 32),
      connectTimeoutMs: duration('connectTimeoutMs', options.connectTimeoutMs ?? 5_000),
      maxResponseBytes: count('maxResponseBytes', options.maxResponseBytes ?? 2 ** 30),
      tls: options.tls,
    });
  }

  /** Whether the server is live and ready. A server that cannot be reached is a ConnectionError. */
  async health(options: CallOptions = {}): Promise<Health> {
    const [live, ready] = await Promise.all([
      this.probe('/v2/health/live', options),
      this.probe('/v2/health/ready', options),
    ]);
    return { live, ready };
  }

  async serverMetadata(options: CallOptions = {}): Promise<ServerMetadata> {
    return this.call(
      options,
      () => this.get('/v2'),
      (answer) => decodeServerMetadata(jsonBody(answer)),
    );
  }

  /** @throws InferenceError MODEL_NOT_FOUND, NOT_READY … */
  async modelMetadata(model: string, options: ModelCallOptions = {}): Promise<ModelMetadata> {
    const path = modelPath(model, options.version);
    return this.call(
      options,
      () => this.get(path),
      (answer) => decodeModelMetadata(jsonBody(answer)),
    );
  }

  /** Whether a model takes requests. @throws InferenceError when the server does not know it. */
  async modelReady(model: string, options: ModelCallOptions = {}): Promise<boolean> {
    return this.probe(`${modelPath(model, options.version)}/ready`, options);
  }

  /** The versions that the server knows, ready or not. */
  async repositoryIndex(options: CallOptions = {}): Promise<RepositoryEntry[]> {
    return this.call(options, () => this.post('/v2/repository/index', {}), decodeIndex);
  }

  /**
   * Has a model loaded, or loaded again where its files have changed; settled when it serves, which may take longer than the usual `timeoutMs`.
   *
   * @param options.config settings instead of those in its directory, as in a `config.json`.
   * @throws InferenceError with the reason when it cannot be loaded, or the server does not load on command.
   */
  async loadModel(model: string, options: CallOptions & { readonly config?: object } = {}): Promise<void> {
    const parameters = options.config === undefined ? {} : { config: JSON.stringify(options.config) };
    const path = `/v2/repository/models/${segment('model', model)}/load`;
    return this.call(options, () => this.post(path, { parameters }), assertSuccess);
  }

  /** Has a model unloaded; settled when its memory is free. @throws InferenceError */
  async unloadModel(model: string, options: CallOptions = {}): Promise<void> {
    const path = `/v2/repository/models/${segment('model', model)}/unload`;
    return this.call(options, () => this.post(path, {}), assertSuccess);
  }

  /**
   * Runs a model. The arrays of the inputs must not change until the promise settles, since a retry sends them again.
   *
   * @throws TypeError or RangeError when an input is not what it says; nothing is sent then.
   * @throws InferenceError when the server refuses or the model fails, ConnectionError when there is no usable answer, the signal's reason when it fires.
   */
  infer(model: string, request: InferRequest): Promise<InferResult>;
  /** The same for a model whose tensors the compiler knows (`bin/serve inspect FILE --types`). */
  infer<M extends ModelTypes>(model: string, request: TypedRequest<M>): Promise<TypedResult<M>>;
  async infer(model: string, request: InferRequest): Promise<InferResult> {
    const path = `${modelPath(model, request.version)}/infer`;
    const encoded = encodeRequest(request, request.binary ?? this.binary);
    const post = (leftMs: number): HttpRequest => {
      const { headers, body } = requestBody(encoded, leftMs);
      return { method: 'POST', path: this.basePath + path, headers: { ...this.headers, ...headers }, body };
    };
    return this.call(request, post, (answer) => decodeResponse(answer, encoded));
  }

  /** Waits for the calls under way, retries included, and closes the connections. Later calls fail. */
  close(): Promise<void> {
    this.closing ??= this.finish();
    return this.closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async finish(): Promise<void> {
    if (this.pending > 0) {
      await new Promise<void>((resolve) => {
        this.onIdle = resolve;
      });
    }
    await this.transport.close();
  }

  private post(path: string, document: object): HttpRequest {
    const headers = { ...this.headers, 'content-type': 'application/json' };
    return { method: 'POST', path: this.basePath + path, headers, body: Buffer.from(JSON.stringify(document)) };
  }

  private get(path: string): HttpRequest {
    return { method: 'GET', path: this.basePath + path, headers: { ...this.headers }, body: null };
  }

  /** A yes or no question: 200 is yes; 400 (Triton) and 503 are no. A retry would only hide the answer. */
  private async probe(path: string, options: CallOptions): Promise<boolean> {
    const decide = (answer: HttpAnswer): boolean => {
      if (answer.status === 400 || answer.status === 503) return false;
      assertSuccess(answer);
      return true;
    };
    return this.call(options, () => this.get(path), decide);
  }

  /** One call with all its tries. `request` gets the time left for the try. */
  private async call<T>(
    options: CallOptions,
    request: (leftMs: number) => HttpRequest,
    decode: (answer: HttpAnswer) => T,
  ): Promise<T> {
    if (this.closing !== undefined) throw new ConnectionError('CLIENT_CLOSED', 'the client is closed', { sent: false });
    if (this.pending >= this.maxPending) {
      throw new ConnectionError('TOO_MANY_PENDING', `${this.pending} calls are under way (maxPending)`, {
        sent: false,
      });
    }
    const timeoutMs = duration('timeoutMs', options.timeoutMs ?? this.timeoutMs);
    const cancellation = new Cancellation(timeoutMs, options.signal);
    this.pending++;
    try {
      for (let attempt = 1; ; attempt++) {
        try {
          return decode(await this.transport.exchange(request(cancellation.leftMs()), cancellation));
        } catch (error) {
          const delayMs = retryDelayMs(error, attempt, cancellation.elapsedMs(), this.retry, Math.random());
          // Waiting beyond the end of the call would only turn a telling error into a timeout.
          if (delayMs === undefined || delayMs >= cancellation.leftMs()) throw error;
          await cancellation.sleep(delayMs);
        }
      }
    } finally {
      cancellation.release();
      if (--this.pending === 0) this.onIdle?.();
    }
  }
}

function parseUrl(url: string | URL): URL {
  const base = new URL(url);
  if (base.protocol !== 'http:' && base.protocol !== 'https:') {
    throw new TypeError(`the URL must begin with http:// or https://, not ${base.protocol}`);
  }
  if (base.username !== '' || base.password !== '') {
    throw new TypeError('the URL must not hold a password; give an Authorization header');
  }
  if (base.search !== '' || base.hash !== '') throw new TypeError('the URL must not have a query or a fragment');
  return base;
}

function modelPath(model: string, version: string | undefined): string {
  const path = `/v2/models/${segment('model', model)}`;
  return version === undefined ? path : `${path}/versions/${segment('version', version)}`;
}

/** A name as one segment of a path. */
function segment(what: string, name: string): string {
  if (typeof name !== 'string' || name === '') throw new TypeError(`the ${what} must be a string that is not empty`);
  try {
    return encodeURIComponent(name);
  } catch (cause) {
    throw new TypeError(`the ${what} has half of a surrogate pair`, { cause });
  }
}

function retryPolicy(changes: ClientOptions['retry']): RetryPolicy {
  if (changes === false) return { ...DEFAULT_RETRY, attempts: 1 };
  const policy = { ...DEFAULT_RETRY, ...changes };
  count('retry.attempts', policy.attempts);
  for (const option of ['totalMs', 'baseMs', 'maxMs'] as const) duration(`retry.${option}`, policy[option]);
  return policy;
}

/** Milliseconds that a timer can wait. */
function duration(option: string, value: number): number {
  if (value >= 0 && value <= TIMER_MAX_MS) return value;
  throw new RangeError(`${option} must be between 0 and ${TIMER_MAX_MS} ms, not ${value}`);
}

function count(option: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new RangeError(`${option} must be a whole number of 1 or more, not ${value}`);
}
