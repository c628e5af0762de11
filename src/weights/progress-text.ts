/** How far a fetch has got, in words: the same for the terminal, the log, the status and the reason of a model. */
import { roundSizeBytes } from '../config/size.ts';
import type { FileProgress } from './tracker.ts';

/** "45 % of 1.2 GiB, 30 MiB/s, 22 s left", and what else there is to say. */
export function progressText({ phase, bytes, sizeBytes, bytesPerS, remainingS, note }: FileProgress): string {
  if (phase === 'done') return `${roundSizeBytes(bytes)}, done`;
  if (phase === 'queued') return 'in line';
  const parts: string[] = [];
  if (bytes > 0 || phase === 'receiving') {
    parts.push(
      sizeBytes === undefined ? roundSizeBytes(bytes) : `${percent(bytes, sizeBytes)} of ${roundSizeBytes(sizeBytes)}`,
    );
  }
  if (phase === 'asking' || phase === 'checking')
    parts.push(phase === 'asking' ? 'asking the server' : 'reading what there is');
  if (bytesPerS !== undefined) parts.push(`${roundSizeBytes(bytesPerS)}/s`);
  if (remainingS !== undefined) parts.push(`${durationText(remainingS)} left`);
  if (note !== '') parts.push(note);
  return parts.join(', ');
}

function percent(bytes: number, sizeBytes: number): string {
  return `${sizeBytes === 0 ? 100 : Math.floor((bytes / sizeBytes) * 100)} %`;
}

/** "45 s", "3 min", "2 h 5 min". */
function durationText(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
