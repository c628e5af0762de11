/**
 * Turns load options into ONNX Runtime's session options.
 *
 * `sessionConfigEntries` is pure. The OrtSessionOptions are owned by `withSessionOptions` and gone when it returns.
 */
import { BatchportError } from '../config/errors.ts';
import { ortEnvironment } from './environment.ts';
import { ortLibrary } from './library.ts';
import { appendProvider, type ProviderRequest, providerSteps } from './provider.ts';

/** GraphOptimizationLevel of the C API. */
const OPTIMIZATION = { disable: 0, basic: 1, extended: 2, all: 99 } as const;

const INTRA_OP_THREADS_MAX = 1024;

export interface LoadOptions extends ProviderRequest {
  /** Threads that work on one run; at least 1, which means the calling thread alone. */
  readonly intraOpThreads: number;
  /** Session config entries (`session.…`), over the defaults. */
  readonly sessionConfig?: Readonly<Record<string, string>>;
  readonly graphOptimization?: keyof typeof OPTIMIZATION;
  /** Name under which ONNX Runtime prints about this session. */
  readonly logId?: string;
}

/** Session config entries for these options: no busy waiting, and for the CPU the arena of `withCpuArena`. */
export function sessionConfigEntries(options: LoadOptions): Readonly<Record<string, string>> {
  return {
    'session.intra_op.allow_spinning': '0',
    'session.inter_op.allow_spinning': '0',
    ...options.sessionConfig,
    ...(options.provider === 'cpu' ? { 'session.use_env_allocators': '1' } : {}),
  };
}

/**
 * Calls `use` with an OrtSessionOptions* made from `options`.
 *
 * @throws BAD_REQUEST or NOT_SUPPORTED for options that cannot be, OrtError for what ONNX Runtime refuses.
 */
export function withSessionOptions<T>(options: LoadOptions, use: (sessionOptions: number) => T): T {
  const { intraOpThreads } = options;
  if (!Number.isInteger(intraOpThreads) || intraOpThreads < 1 || intraOpThreads > INTRA_OP_THREADS_MAX) {
    throw new BatchportError(
      'BAD_REQUEST',
      `intra_op_threads is ${intraOpThreads}; it must be a whole number from 1 to ${INTRA_OP_THREADS_MAX}.`,
    );
  }
  const steps = providerSteps(options);
  // Providers already log while they are appended, which needs an environment.
  ortEnvironment();
  const { api, check, out } = ortLibrary();
  const sessionOptions = out((cell) => api.CreateSessionOptions(cell));
  try {
    check(api.SetSessionGraphOptimizationLevel(sessionOptions, OPTIMIZATION[options.graphOptimization ?? 'all']));
    // An explicit count also keeps ONNX Runtime from binding its threads to cores, which fails outside the affinity mask.
    check(api.SetIntraOpNumThreads(sessionOptions, intraOpThreads));
    check(api.SetInterOpNumThreads(sessionOptions, 1));
    // The plan of a run's memory is cached per input shape and never dropped: about 0.6 KB for three operators. Without it a run
    // of the tiny MLP takes 0.2 us longer, and runs of larger models and their memory stay the same.
    check(api.DisableMemPattern(sessionOptions));
    if (options.logId !== undefined) {
      check(api.SetSessionLogId(sessionOptions, options.logId));
    }
    for (const [key, value] of Object.entries(sessionConfigEntries(options))) {
      check(api.AddSessionConfigEntry(sessionOptions, key, value));
    }
    for (const step of steps) {
      appendProvider(sessionOptions, step);
    }
    return use(sessionOptions);
  } finally {
    api.ReleaseSessionOptions(sessionOptions);
  }
}
