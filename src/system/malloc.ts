/**
 * How the C library's heap treats large blocks.
 *
 * By itself it puts them into the heap once it has seen a few freed, since that is faster; there they leave holes, and a process that loads and drops models of
 * 33 MB keeps 260 to 600 MB, which differs from run to run. Mapped one by one they go back to the system as soon as they are freed, and it keeps 117 MB. ONNX
 * Runtime takes large blocks rarely: weights, and what its arenas grow by.
 */
import { libc } from './libc.ts';

const M_MMAP_THRESHOLD = -3;
const LARGE_BYTES = 2 ** 20;

const mallopt: (parameter: number, value: number) => number = libc.func('int mallopt(int parameter, int value)');

/** From now on large blocks of this process are given back to the system when they are freed. */
export function mapLargeBlocks(): void {
  if (mallopt(M_MMAP_THRESHOLD, LARGE_BYTES) !== 1) throw new Error('mallopt refuses a threshold: this is a bug');
}
