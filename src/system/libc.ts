/**
 * The C library, opened once per thread.
 *
 * Every other file of this folder declares its functions on this handle; nothing outside the folder may. Functions are
 * declared with plain integers for pointers (`int64_t`): user-space addresses stay below 2^47, so a JavaScript number
 * holds them exactly, and a call with numbers alone allocates nothing. Only the GNU C library is supported, as by ONNX
 * Runtime's own binaries.
 */
import koffi from 'koffi';

export const libc = koffi.load('libc.so.6');

/**
 * Number of the last failed call on this thread. Read it straight after the call: the next one through this handle
 * overwrites it.
 */
export const lastErrno: () => number = koffi.errno;

/**
 * Address of the bytes of `buffer`. The caller keeps `buffer` reachable for as long as native code uses the address;
 * the bytes of an ArrayBuffer never move.
 */
export function addressOf(buffer: ArrayBuffer): number {
  return Number(koffi.address(buffer));
}

/**
 * ArrayBuffer over `byteLength` bytes of native memory, not a copy. Nothing keeps the memory alive on behalf of the
 * buffer.
 */
export function viewOf(address: number, byteLength: number): ArrayBuffer {
  return koffi.view(BigInt(address), byteLength);
}
