/**
 * What sessions of one process share inside ONNX Runtime: its environment, and for the time of a load an arena with a limit.
 *
 * ONNX Runtime keeps one environment per process, whichever thread asks; it is created with the first session and lives
 * until the process ends, so that threads which still run a session never lose it. Each thread that loads holds one reference.
 */

import { CStrings } from './c-strings.ts';
import { Cells } from './cells.ts';
import { ortLibrary } from './library.ts';

/** OrtLoggingLevel, in order. */
const LOG_LEVELS = ['verbose', 'info', 'warning', 'error', 'fatal'] as const;
type OrtLogLevel = (typeof LOG_LEVELS)[number];

const ARENA_ALLOCATOR = 1;
const DEFAULT_MEMORY = 0;
/** arena_extend_strategy: grow by what is asked, not to the next power of two, so that a limit can be used to the end. */
const SAME_AS_REQUESTED = 1;

let environment = 0;

/** The process's OrtEnv*. What ONNX Runtime prints itself goes to stderr from level `error` on. */
export function ortEnvironment(): number {
  if (environment === 0) {
    const { api, out } = ortLibrary();
    environment = out((cell) => api.CreateEnv(logLevelValue('error'), 'batchport', cell));
  }
  return environment;
}

/** OrtLoggingLevel of the C API. */
export function logLevelValue(level: OrtLogLevel): number {
  return LOG_LEVELS.indexOf(level);
}

/**
 * Calls `load` while the environment offers a CPU arena of at most `maxBytes` (0: without a limit) that grows by what is asked. ONNX Runtime's own grows by powers
 * of two and never gives its first piece back, whatever the peak was that it was made for; runs take the same time in both. A session created meanwhile with
 * `session.use_env_allocators` keeps that arena as its own after the environment has forgotten it, so each session can have
 * its limit. Not for two threads at once: the second finds the place taken and gets an OrtError.
 */
export function withCpuArena<T>(maxBytes: number, load: () => T): T {
  const { api, check, out } = ortLibrary();
  const memoryInfo = out((cell) => api.CreateCpuMemoryInfo(ARENA_ALLOCATOR, DEFAULT_MEMORY, cell));
  try {
    const keys = new CStrings(['max_mem', 'arena_extend_strategy']);
    const values = new Cells(2);
    values.set(0, maxBytes);
    values.set(1, SAME_AS_REQUESTED);
    const arena = out((cell) => api.CreateArenaCfgV2(keys.address, values.address, keys.count, cell));
    try {
      check(api.CreateAndRegisterAllocatorV2(ortEnvironment(), 'CPUExecutionProvider', memoryInfo, arena, 0, 0, 0));
    } finally {
      api.ReleaseArenaCfg(arena);
    }
    try {
      return load();
    } finally {
      check(api.UnregisterAllocator(ortEnvironment(), memoryInfo));
    }
  } finally {
    api.ReleaseMemoryInfo(memoryInfo);
  }
}
