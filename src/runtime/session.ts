/**
 * A session: a model's weights, loaded once and run by any number of threads of the process.
 *
 * Owner: the one who called `load` releases it, after every Runner made from its handle is disposed; a run on a released
 * session is a fault of memory that nothing catches. Its weights live outside JavaScript, so losing the object leaks them.
 */
import { BatchportError } from '../config/errors.ts';
import { roundSizeBytes } from '../config/size.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { type ArenaState, readAllocatorStats, readArena } from './allocator-stats.ts';
import { ortEnvironment, withCpuArena } from './environment.ts';
import { ortLibrary } from './library.ts';
import { checkProvider, PROVIDERS, type ProviderName } from './provider.ts';
import { type LoadOptions, withSessionOptions } from './session-options.ts';
import { readSignature } from './signature.ts';

export type { LoadOptions } from './session-options.ts';

/** What another thread of the same process needs to run the session. Plain data, may be posted. */
export interface SessionHandle {
  /** OrtSession*. Valid in this process until the session is released. */
  readonly session: number;
  readonly signature: ModelSignature;
  readonly provider: ProviderName;
  readonly deviceId: number;
}

/** The weights alone pass the limit of their arena. */
export class WeightsTooLarge extends BatchportError {
  readonly weightsBytes: number;

  constructor(weightsBytes: number, limitBytes: number) {
    super(
      'OUT_OF_MEMORY',
      `the weights take ${roundSizeBytes(weightsBytes)}, more than the model may take (${roundSizeBytes(limitBytes)}, see memory_budget_bytes)`,
    );
    this.weightsBytes = weightsBytes;
  }
}

export class Session {
  readonly signature: ModelSignature;
  readonly handle: SessionHandle;
  #session: number;

  private constructor(session: number, signature: ModelSignature, options: LoadOptions) {
    this.#session = session;
    this.signature = signature;
    this.handle = {
      session,
      signature,
      provider: options.provider,
      deviceId: options.deviceId,
    };
  }

  /**
   * Loads a model file. Blocks for as long as reading and optimizing it takes.
   *
   * `arenaMaxBytes` limits weights and runs together. Only one thread at a time may load for the CPU.
   *
   * @throws OrtError for a file or an option that ONNX Runtime refuses, with its message; NOT_SUPPORTED for a provider that is
   *   not there or an input that the protocol cannot carry; BAD_REQUEST for options that cannot be; WeightsTooLarge when
   *   the weights alone pass the limit.
   */
  static load(modelPath: string, options: LoadOptions): Session {
    if (modelPath.includes('\0')) {
      throw new BatchportError('BAD_REQUEST', 'The path of a model cannot hold a zero byte.');
    }
    checkProvider(options.provider);
    const { api, out } = ortLibrary();
    const create = (): number =>
      withSessionOptions(options, (sessionOptions) =>
        out((cell) => api.CreateSession(ortEnvironment(), modelPath, sessionOptions, cell)),
      );
    const isCpu = options.provider === 'cpu';
    const session = isCpu ? withCpuArena(options.arenaMaxBytes ?? 0, create) : create();
    try {
      const loaded = new Session(session, readSignature(session), options);
      if (isCpu && options.arenaMaxBytes !== undefined) {
        loaded.#checkBudget(options.arenaMaxBytes);
      }
      return loaded;
    } catch (error) {
      api.ReleaseSession(session);
      throw error;
    }
  }

  /** Statistics of the memory that runs take, see `readAllocatorStats`. @throws OrtError */
  allocatorStats(): Record<string, number> {
    if (this.#session === 0) {
      throw new Error('The session is released. This is a bug.');
    }
    const { provider, deviceId } = this.handle;
    return readAllocatorStats(this.#session, PROVIDERS[provider].memory, deviceId);
  }

  /** The arena now, see `readArena`. */
  arena(): ArenaState | undefined {
    return sessionArena(this.handle);
  }

  /** ONNX Runtime lets the weights pass the limit and only then refuses every run. */
  #checkBudget(maxBytes: number): void {
    const { InUse: weightBytes = 0 } = this.allocatorStats();
    if (weightBytes > maxBytes) {
      throw new WeightsTooLarge(weightBytes, maxBytes);
    }
  }

  /** Frees the weights. Every Runner of this session must be disposed before. A second call does nothing. */
  release(): void {
    if (this.#session !== 0) {
      ortLibrary().api.ReleaseSession(this.#session);
      this.#session = 0;
    }
  }
}

/** The arena of a session, read from any thread of its process; undefined where it tells nothing. */
export function sessionArena({ session, provider, deviceId }: SessionHandle): ArenaState | undefined {
  return readArena(session, PROVIDERS[provider].memory, deviceId);
}
