/**
 * Why weights could not be had: every reason in one table, and the error that carries one.
 *
 * They are told where a model's state is told (index, readiness, /status, logs) and by `bin/serve pull`; no answer to an inference request has them as its code.
 */

export interface FaultKind {
  /** Whether it may mend itself, so that the server tries again by and by; else it waits for another configuration or a command. */
  readonly again: boolean;
  /** One line for the table in the README. */
  readonly meaning: string;
}

export const WEIGHT_FAULTS = {
  ACCESS_DENIED: {
    again: true,
    meaning: 'The server wants an authorization that it was not given, or a presigned URL has expired (401, 403).',
  },
  NOT_FOUND: { again: true, meaning: 'The server has no such file (404, 410).' },
  NOT_A_FILE: {
    again: true,
    meaning:
      'The answer cannot be the file: another status, a compressed body, a redirect that leads nowhere or from https to http.',
  },
  HASH_MISMATCH: {
    again: false,
    meaning: 'The whole file came, and is not the one whose sha256 is given. It is not kept.',
  },
  RATE_LIMITED: {
    again: true,
    meaning: 'The server answers 429 or 503 again and again, or asks to come back later than is waited for.',
  },
  INTERRUPTED: {
    again: true,
    meaning:
      'The server was not reached, failed, or broke the transfer off too many times in a row without getting on. What came is kept.',
  },
  UNTRUSTED: { again: true, meaning: "The server's certificate is not valid for it." },
  CREDENTIALS: { again: true, meaning: 'The file of --weight-credentials, or one that it names, cannot be used.' },
  CACHE_FULL: {
    again: true,
    meaning: 'The file does not fit under --weight-cache-max-bytes beside the files that are in use.',
  },
  DISK_FULL: {
    again: true,
    meaning: 'The disk of the cache has no room for the file, even without what is not in use.',
  },
  CACHE_UNUSABLE: { again: true, meaning: 'The cache directory cannot be written to, or has no locks or links.' },
  STOPPED: { again: true, meaning: 'The server was told to stop meanwhile. What came is kept.' },
} as const satisfies Record<string, FaultKind>;

export type FaultCode = keyof typeof WEIGHT_FAULTS;

export class WeightFault extends Error {
  readonly code: FaultCode;

  /** @param message a sentence without an end, with no more of a URL than `shownUrl` */
  constructor(code: FaultCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'WeightFault';
    this.code = code;
  }
}

/** A failure of the file system as a fault: what was being done, and with which path. */
export function diskFault(error: unknown, what: string): WeightFault {
  if (error instanceof WeightFault) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new WeightFault('DISK_FULL', `${what}: the disk is full (${code})`, { cause: error });
  }
  return new WeightFault('CACHE_UNUSABLE', `${what}: ${code ?? message}`, { cause: error });
}
