/**
 * Statistics of the allocator that a session's runs take memory from.
 */
import { Cells } from './cells.ts';
import { ortLibrary, readPointer, readText } from './library.ts';
import { ORT_NOT_IMPLEMENTED, OrtError } from './ort-error.ts';

const ARENA_ALLOCATOR = 1;
const DEFAULT_MEMORY = 0;

/**
 * Statistics by ONNX Runtime's own names, among them InUse, MaxInUse, TotalAllocated (bytes taken from the system), MaxAllocSize
 * and Limit (absent when there is none) in bytes, and counts of calls. Empty for an allocator without statistics.
 *
 * @param session OrtSession*
 * @param memory OrtMemoryInfo name, see `PROVIDERS`
 * @throws OrtError
 */
export function readAllocatorStats(session: number, memory: string, deviceId: number): Record<string, number> {
  const { api, out } = ortLibrary();
  const memoryInfo = out((cell) => api.CreateMemoryInfo(memory, ARENA_ALLOCATOR, deviceId, DEFAULT_MEMORY, cell));
  try {
    const allocator = out((cell) => api.CreateAllocator(session, memoryInfo, cell));
    try {
      const pairs = out((cell) => api.AllocatorGetStats(allocator, cell));
      return readPairs(pairs);
    } catch (error) {
      if (error instanceof OrtError && error.code === ORT_NOT_IMPLEMENTED) {
        return {};
      }
      throw error;
    } finally {
      api.ReleaseAllocator(allocator);
    }
  } finally {
    api.ReleaseMemoryInfo(memoryInfo);
  }
}

/** The arena that a session's weights and runs lie in. */
export interface ArenaState {
  /** In use now. */
  readonly inUseBytes: number;
  /** Most that was ever in use. */
  readonly peakBytes: number;
  /** Taken from the system: what a limit counts. */
  readonly heldBytes: number;
}

/** Undefined where no arena tells so much: nothing depends on knowing it. Parameters as above. */
export function readArena(session: number, memory: string, deviceId: number): ArenaState | undefined {
  let stats: Record<string, number>;
  try {
    stats = readAllocatorStats(session, memory, deviceId);
  } catch (error) {
    if (error instanceof OrtError) return undefined;
    throw error;
  }
  const { InUse, MaxInUse, TotalAllocated } = stats;
  if (InUse === undefined || MaxInUse === undefined || TotalAllocated === undefined) return undefined;
  return { inUseBytes: InUse, peakBytes: MaxInUse, heldBytes: TotalAllocated };
}

/** Reads an OrtKeyValuePairs* and releases it. */
function readPairs(pairs: number): Record<string, number> {
  const { api } = ortLibrary();
  try {
    const cells = new Cells(3);
    // The lists and their texts belong to the pairs.
    api.GetKeyValuePairs(pairs, cells.at(0), cells.at(1), cells.at(2));
    const stats: Record<string, number> = {};
    for (let index = 0; index < cells.get(2); index++) {
      const name = readText(readPointer(cells.get(0), index));
      const value = Number(readText(readPointer(cells.get(1), index)));
      // No limit reads as -1.
      if (name !== 'Limit' || value > 0) {
        stats[name] = value;
      }
    }
    return stats;
  } finally {
    api.ReleaseKeyValuePairs(pairs);
  }
}
