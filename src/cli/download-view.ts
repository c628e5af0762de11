/**
 * Shows how far downloads are: bars that are drawn over one another on a terminal, a line each now and then elsewhere.
 *
 * Bound: LINES_MAX bars; what is done or in line is counted.
 */
import { progressText } from '../weights/progress-text.ts';
import type { Tracker } from '../weights/tracker.ts';
import { printable, type Terminal } from './terminal.ts';
import { cutLine } from './text-table.ts';

const REDRAW_MS = 200;
const LINE_EVERY_MS = 5000;
const LINES_MAX = 16;
const BAR_CHARACTERS = 20;

export interface ShownDownload {
  /** What the file belongs to, such as the name of its model; may be empty. */
  readonly of: string;
  readonly tracker: Tracker;
}

export class DownloadView {
  readonly #terminal: Terminal;
  readonly #downloads: readonly ShownDownload[];
  readonly #timer: NodeJS.Timeout;
  /** Lines of the last picture, above the cursor. */
  #drawn = 0;

  constructor(terminal: Terminal, downloads: readonly ShownDownload[]) {
    this.#terminal = terminal;
    this.#downloads = downloads;
    const live = terminal.errColumns !== undefined;
    this.#timer = setInterval(() => (live ? this.#draw() : this.#tell()), live ? REDRAW_MS : LINE_EVERY_MS);
  }

  /** A line that stays. */
  note(download: ShownDownload | undefined, what: string): void {
    const name = download === undefined ? '' : `${nameOf(download)}: `;
    this.#erase();
    this.#terminal.err(`${printable(`${name}${what}`)}\n`);
    if (this.#terminal.errColumns !== undefined) this.#draw();
  }

  /** The end: the last picture stays. */
  close(): void {
    clearInterval(this.#timer);
    if (this.#terminal.errColumns === undefined) return;
    this.#draw();
    this.#drawn = 0;
  }

  #going(): ShownDownload[] {
    return this.#downloads.filter(({ tracker }) => tracker.phase !== 'done' && tracker.phase !== 'queued');
  }

  #tell(): void {
    for (const one of this.#going().slice(0, LINES_MAX)) {
      this.#terminal.err(`${printable(`${nameOf(one)}: ${progressText(one.tracker.progress(Date.now()))}`)}\n`);
    }
  }

  #draw(): void {
    const going = this.#going();
    const done = this.#downloads.filter(({ tracker }) => tracker.phase === 'done').length;
    const lines = going.slice(0, LINES_MAX).map((one) => barLine(one));
    lines.push(`${done} of ${this.#downloads.length} files are there`);
    this.#erase();
    const width = this.#terminal.errColumns;
    this.#terminal.err(lines.map((line) => `${cutLine(printable(line), width)}\n`).join(''));
    this.#drawn = lines.length;
  }

  #erase(): void {
    if (this.#drawn > 0) this.#terminal.err(`\x1b[${this.#drawn}A\x1b[J`);
    this.#drawn = 0;
  }
}

function barLine(one: ShownDownload): string {
  const progress = one.tracker.progress(Date.now());
  const { bytes, sizeBytes } = progress;
  const full = sizeBytes === undefined || sizeBytes === 0 ? 0 : Math.floor((bytes / sizeBytes) * BAR_CHARACTERS);
  return `[${'#'.repeat(full)}${'.'.repeat(BAR_CHARACTERS - full)}] ${nameOf(one)}  ${progressText(progress)}`;
}

function nameOf({ of, tracker }: ShownDownload): string {
  return of === '' ? tracker.file : `${of} ${tracker.file}`;
}
