/**
 * The regions of shared memory that clients have registered, as this ingress process reads and writes them.
 *
 * Through descriptors, never mapped: bytes go from the region to the queue in one copy, and a file that its owner makes shorter meanwhile gives fewer bytes instead
 * of a signal. The supervisor keeps the table; a region that it takes out is closed at once, and requests that still wait for space with tensors in it fail.
 */
import { closeSync, fstatSync, readSync, writeSync } from 'node:fs';
import { BatchportError } from '../config/errors.ts';
import type { SharedRegion } from '../protocol/control.ts';
import { quoteName } from '../protocol/model-interface.ts';
import type { SharedMemory, SharedReference, SharedTarget } from '../protocol/shared-memory.ts';
import type { TensorSource } from '../queue/tensor-source.ts';
import { openProcessFd } from '../system/memory.ts';

/** A region that is open here. */
class OpenRegion {
  readonly about: SharedRegion;
  /** Undefined once it is closed: the number is another file's then. */
  #fd: number | undefined;

  constructor(about: SharedRegion, fd: number) {
    this.about = about;
    this.#fd = fd;
  }

  /** Fills `target` from `at`, counted from the start of the region. @returns why it could not be filled; undefined where it was */
  read(target: Uint8Array, at: number): string | undefined {
    let done = 0;
    let problem: string | undefined;
    try {
      while (done < target.length && this.#fd !== undefined) {
        const bytes = readSync(this.#fd, target, done, target.length - done, this.about.offset + at + done);
        if (bytes === 0) break;
        done += bytes;
      }
    } catch (error) {
      problem = `cannot be read: ${(error as Error).message}`;
    }
    if (done === target.length) return undefined;
    target.fill(0, done);
    return problem ?? (this.#fd === undefined ? UNREGISTERED : 'has become shorter than it was registered');
  }

  /** Writes `data` at `at`. @returns why it could not be written; undefined where it was */
  write(data: Uint8Array, at: number): string | undefined {
    if (this.#fd === undefined) return UNREGISTERED;
    const start = this.about.offset + at;
    try {
      // Writing would make it longer again.
      if (fstatSync(this.#fd).size < start + data.length) return 'has become shorter than it was registered';
      for (let done = 0; done < data.length; ) {
        done += writeSync(this.#fd, data, done, data.length - done, start + done);
      }
    } catch (error) {
      return `cannot be written: ${(error as Error).message}`;
    }
    return undefined;
  }

  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }
}

const UNREGISTERED = 'has been unregistered before the request was done';

class RegionSource implements TensorSource {
  readonly #region: OpenRegion;
  readonly #at: number;
  readonly #owner: string;
  readonly length: number;
  fault: string | undefined;

  constructor(region: OpenRegion, at: number, length: number, owner: string) {
    this.#region = region;
    this.#at = at;
    this.length = length;
    this.#owner = owner;
  }

  copyTo(target: Uint8Array): void {
    const problem = this.#region.read(target, this.#at);
    this.fault = problem === undefined ? undefined : faultOf(this.#region, this.#owner, problem);
  }

  subarray(start: number, end: number): TensorSource {
    return new RegionSource(this.#region, this.#at + start, end - start, this.#owner);
  }
}

function faultOf({ about }: OpenRegion, owner: string, problem: string): string {
  return `${owner}: shared memory region ${quoteName(about.name)} ${problem}`;
}

export class SharedRegions implements SharedMemory {
  readonly #supervisorPid: number;
  #regions = new Map<string, OpenRegion>();
  /** Whether clients may register any. */
  readonly enabled: boolean;

  constructor(enabled: boolean, supervisorPid: number) {
    this.enabled = enabled;
    this.#supervisorPid = supervisorPid;
  }

  /** Takes over the supervisor's table. @returns serials of those that could not be opened */
  update(announced: readonly SharedRegion[]): number[] {
    const next = new Map<string, OpenRegion>();
    const missing: number[] = [];
    for (const about of announced) {
      const known = this.#regions.get(about.name);
      const region = known?.about.serial === about.serial ? known : this.#open(about);
      if (region === undefined) missing.push(about.serial);
      else next.set(about.name, region);
    }
    for (const region of this.#regions.values()) {
      if (next.get(region.about.name) !== region) region.close();
    }
    this.#regions = next;
    return missing;
  }

  #open(about: SharedRegion): OpenRegion | undefined {
    let fd: number;
    try {
      fd = openProcessFd(this.#supervisorPid, about.fd);
    } catch {
      return undefined;
    }
    const { dev, ino } = fstatSync(fd);
    if (dev === about.dev && ino === about.ino) return new OpenRegion(about, fd);
    closeSync(fd);
    return undefined;
  }

  /** Of one, or of all; for the protocol. @throws NOT_FOUND, NOT_SUPPORTED */
  status(name: string | undefined): { name: string; key: string; offset: number; byte_size: number }[] {
    if (!this.enabled) {
      throw new BatchportError('NOT_SUPPORTED', 'This server does not use shared memory (--system-shared-memory).');
    }
    const regions = [...this.#regions.values()].filter(({ about }) => name === undefined || about.name === name);
    if (regions.length === 0 && name !== undefined) {
      throw new BatchportError('NOT_FOUND', `Unable to find system shared memory region: ${quoteName(name)}`);
    }
    return regions.map(({ about }) => ({
      name: about.name,
      key: about.key,
      offset: about.offset,
      byte_size: about.byteSize,
    }));
  }

  source(reference: SharedReference, owner: string): TensorSource {
    return new RegionSource(this.#find(reference, owner), reference.offset, reference.byteSize, owner);
  }

  read(reference: SharedReference, owner: string): Uint8Array {
    const region = this.#find(reference, owner);
    const data = Buffer.allocUnsafe(reference.byteSize);
    const problem = region.read(data, reference.offset);
    if (problem !== undefined) throw new BatchportError('BAD_TENSOR', faultOf(region, owner, problem));
    return data;
  }

  target(reference: SharedReference, owner: string): SharedTarget {
    const region = this.#find(reference, owner);
    const { byteSize, offset } = reference;
    const write = (data: Uint8Array): void => {
      if (data.length > byteSize) {
        throw new BatchportError(
          'BAD_TENSOR',
          `shared memory size specified with the request for ${owner} (${byteSize} bytes) should be at least ${data.length} bytes to hold the results`,
        );
      }
      const problem = region.write(data, offset);
      if (problem !== undefined) throw new BatchportError('BAD_TENSOR', faultOf(region, owner, problem));
    };
    return { write };
  }

  #find({ region: name, byteSize, offset }: SharedReference, owner: string): OpenRegion {
    if (!this.enabled) {
      throw new BatchportError(
        'BAD_REQUEST',
        `${owner} has a tensor in shared memory, which this server does not use; start it with --system-shared-memory`,
      );
    }
    const region = this.#regions.get(name);
    if (region === undefined) {
      throw new BatchportError(
        'BAD_TENSOR',
        `${owner}: unable to find shared memory region: ${quoteName(name)}; it has to be registered first`,
      );
    }
    if (offset + byteSize > region.about.byteSize) {
      throw new BatchportError(
        'BAD_TENSOR',
        `${owner}: invalid offset + byte size for shared memory region: ${quoteName(name)}, which has ${region.about.byteSize} bytes`,
      );
    }
    return region;
  }
}
