/** What the supervisor and its thread for weights tell each other. A job is the files of a model, known by `jobKey`. */
import { createHash } from 'node:crypto';
import type { WeightFile } from '../config/weight-url.ts';
import type { FaultCode } from './fault.ts';
import type { FileProgress } from './tracker.ts';

/** The same for the same files from the same addresses; as a text of its own, since it stands in messages. */
export function jobKey(files: readonly WeightFile[]): string {
  return createHash('sha256').update(JSON.stringify(files)).digest('hex');
}

/** What the thread is started with. */
export interface WeightThreadData {
  readonly cacheDirectory: string;
  readonly cacheMaxBytes: number | undefined;
  /** File of --weight-credentials. */
  readonly credentialsFile: string | undefined;
}

export type ToWeightThread =
  | { readonly type: 'fetch'; readonly key: string; readonly files: readonly WeightFile[] }
  /** The supervisor holds the files itself, or nobody wants them any more: the job is forgotten. */
  | { readonly type: 'forget'; readonly key: string }
  /** Ends when nothing is left to do. */
  | { readonly type: 'stop' };

export type FromWeightThread =
  /** At intervals, and before the end of each job. What has been transferred since the last one, for all jobs. */
  | {
      readonly type: 'progress';
      readonly jobs: readonly { readonly key: string; readonly files: readonly FileProgress[] }[];
      readonly receivedBytes: number;
      readonly requests: number;
    }
  | { readonly type: 'note'; readonly file: string; readonly url: string; readonly what: string }
  /** The files are held until the supervisor says `forget`. */
  | { readonly type: 'done'; readonly key: string }
  | { readonly type: 'failed'; readonly key: string; readonly code: FaultCode; readonly message: string };
