/**
 * Regions of shared memory that clients have registered, for tensors that do not travel with their requests.
 *
 *     register ─▶ file opened and checked ─▶ told to every ingress process ─▶ all have it: registered
 *     unregister ─▶ told to every ingress process ─▶ none has it any more: closed
 *
 * A region is a file in /dev/shm that a client has made. It is opened here once, and by ingress processes through this one, so that all mean the same file whatever
 * becomes of its name. Nothing is mapped: a file that its owner makes shorter cannot harm who reads it. Descriptors are closed only when no ingress process can
 * still be about to open them: their numbers go to other files.
 *
 * Bounds: REGIONS_MAX regions, one descriptor for each here and in every ingress process.
 */
import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { RegionRequest, SharedRegion } from '../protocol/control.ts';
import { quoteName } from '../protocol/model-interface.ts';
import type { CommonState } from './common-state.ts';

const DIRECTORY = '/dev/shm';
const REGIONS_MAX = 256;
/** Of a file in a directory, as the kernel has it. */
const KEY_BYTES_MAX = 255;
const NAME_MAX = 256;

export interface RegionTableOptions {
  /** Whether clients may register any. */
  readonly enabled: boolean;
  readonly common: CommonState;
  readonly log: Logger;
}

export class RegionTable {
  readonly #options: RegionTableOptions;
  readonly #regions = new Map<string, SharedRegion>();
  #serials = 0;

  constructor(options: RegionTableOptions) {
    this.#options = options;
  }

  /**
   * Settled when every ingress process knows the region.
   *
   * @throws ALREADY_EXISTS, BAD_REQUEST for a region that cannot be, QUEUE_FULL for too many of them
   */
  async register(request: RegionRequest): Promise<void> {
    this.#requireEnabled();
    const { name, byteSize, offset } = request;
    const region = quoteName(name);
    // Names go into messages and logs.
    if (name === '' || name.length > NAME_MAX || /\p{Cc}/u.test(name)) {
      refuse(`a region of shared memory must have a name of 1 to ${NAME_MAX} characters without control characters`);
    }
    if (this.#regions.has(name)) {
      throw new BatchportError(
        'ALREADY_EXISTS',
        `shared memory region ${region} already in manager; unregister it first`,
      );
    }
    if (this.#regions.size >= REGIONS_MAX) {
      throw new BatchportError(
        'QUEUE_FULL',
        `There are ${REGIONS_MAX} regions of shared memory already; unregister some.`,
      );
    }
    if (!(byteSize > 0)) refuse(`shared memory region ${region} must have a 'byte_size' of 1 or more`);
    const fd = openRegion(request);
    const { dev, ino } = fstatSync(fd);
    const entry: SharedRegion = { ...request, serial: ++this.#serials, fd, dev, ino };
    this.#regions.set(name, entry);
    const missing = await this.#tell();
    if (missing.includes(entry.serial)) {
      await this.#remove([entry]);
      throw new BatchportError(
        'OUT_OF_MEMORY',
        `shared memory region ${region} could not be opened by every process of the server: too many files are open`,
      );
    }
    this.#options.log.info({ region: name, key: request.key, offset, byteSize }, 'shared memory registered');
  }

  /** Takes one out, or all of them; one that is not there is none the less out. Settled when no ingress process has it any more. */
  async unregister(name: string | undefined): Promise<void> {
    this.#requireEnabled();
    const regions = [...this.#regions.values()].filter((region) => name === undefined || region.name === name);
    if (regions.length === 0) return;
    await this.#remove(regions);
    this.#options.log.info({ regions: regions.map((region) => region.name) }, 'shared memory unregistered');
  }

  /** Lets go of all of them, when there are no ingress processes any more. */
  close(): void {
    for (const { fd } of this.#regions.values()) closeSync(fd);
    this.#regions.clear();
  }

  #requireEnabled(): void {
    if (this.#options.enabled) return;
    throw new BatchportError('NOT_SUPPORTED', 'This server does not use shared memory (--system-shared-memory).');
  }

  async #remove(regions: readonly SharedRegion[]): Promise<void> {
    for (const { name } of regions) this.#regions.delete(name);
    try {
      await this.#tell();
    } finally {
      for (const { fd } of regions) closeSync(fd);
    }
  }

  /** @returns serials of the regions that an ingress process could not open */
  #tell(): Promise<readonly number[]> {
    const { common } = this.#options;
    common.regions = [...this.#regions.values()];
    return common.tell();
  }
}

function refuse(message: string): never {
  throw new BatchportError('BAD_REQUEST', message);
}

/** @throws BAD_REQUEST where there is no file of that name that holds the region */
function openRegion({ name, key, offset, byteSize }: RegionRequest): number {
  const region = quoteName(name);
  // As shm_open has it: one name, perhaps behind a slash.
  const file = key.startsWith('/') ? key.slice(1) : key;
  if (file === '' || file === '.' || file === '..' || /[/\0]/.test(file) || Buffer.byteLength(file) > KEY_BYTES_MAX) {
    refuse(`shared memory region ${region} has a 'key' that is no name of shared memory`);
  }
  const flags = constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  let fd: number;
  try {
    fd = openSync(`${DIRECTORY}/${file}`, flags);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return refuse(`Unable to open shared memory region ${region}: ${code} (its 'key' is a name in ${DIRECTORY})`);
  }
  const problem = regionProblem(fd, offset + byteSize);
  if (problem === undefined) return fd;
  closeSync(fd);
  return refuse(`shared memory region ${region} ${problem}`);
}

function regionProblem(fd: number, endBytes: number): string | undefined {
  const stat = fstatSync(fd);
  if (!stat.isFile()) return 'is no file of shared memory';
  if (endBytes > stat.size) return `would end at byte ${endBytes}, but its file has ${stat.size} bytes`;
  return undefined;
}
