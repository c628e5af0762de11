/**
 * `pull`: fetches a file of weights into the cache by its URL and hash.
 *
 * The path goes to stdout, everything about the work to stderr.
 */
import { homedir } from 'node:os';
import { basename, join } from 'node:path';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import type { ServerSettings } from '../config/settings.ts';
import { resolveSettings } from '../config/settings-resolve.ts';
import { isSha256, type WeightFile, weightUrlProblem } from '../config/weight-url.ts';
import { WeightFault } from '../weights/fault.ts';
import { type Command, lastText, valueOption } from './command.ts';
import { DownloadView } from './download-view.ts';
import { settingFlags, settingOptions } from './setting-options.ts';
import { printable, type Terminal } from './terminal.ts';

const OPTIONS = ['config', 'cache-dir', 'weight-cache-max-bytes', 'weight-credentials', 'log-level'];

export const pullCommand: Command = {
  name: 'pull',
  usage: 'pull <url>',
  describe: 'Fetch a file of weights into the cache',
  positionals: { url: { describe: 'URL of the file' } },
  options: {
    sha256: valueOption('Hash of the content of the file at the URL, in hexadecimal'),
    ...Object.fromEntries(Object.entries(settingOptions()).filter(([name]) => OPTIONS.includes(name))),
  },
  examples: [['pull https://host/mnist.onnx --sha256 9f86d081…', 'Fetch one file and print where it lies']],
  run: async (args, terminal) => {
    const flags = settingFlags(args);
    const { settings } = resolveSettings({ flags, env: terminal.env, cwd: terminal.cwd, modelRequired: false });
    return pull(wantedFile(lastText(args.url)!, lastText(args.sha256)), settings, terminal);
  },
};

/** A file and its place in a directory of its own in the cache. */
function wantedFile(url: string, hash: string | undefined): WeightFile {
  const problem = weightUrlProblem(url);
  // Not the text: it may be a secret.
  if (problem !== undefined) throw new ExitError('USAGE', `the URL cannot be fetched from: it ${problem}`);
  const sha256 = hash?.toLowerCase();
  if (sha256 === undefined || !isSha256(sha256)) {
    const hint = 'sha256sum tells it of a copy that you trust; Hugging Face shows it on the page of the file';
    throw new ExitError('USAGE', '--sha256 must be given: 64 hexadecimal digits', { hint });
  }
  const name = basename(new URL(url).pathname);
  const path = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}$/.test(name) ? name : 'model.onnx';
  return { path, url, sha256 };
}

async function pull(file: WeightFile, settings: ServerSettings, terminal: Terminal): Promise<number> {
  // Imported here so that no other command loads an HTTP library.
  const { WeightCache } = await import('../weights/cache.ts');
  const { filesDirectory } = await import('../weights/model-files.ts');
  const { Fetcher, trackerOf } = await import('../weights/fetcher.ts');
  const { fetchModel } = await import('../weights/model-fetch.ts');
  const cache = new WeightCache(settings.cacheDir, settings.weightCacheMaxBytes);
  const download = { of: '', tracker: trackerOf(file) };
  const view = new DownloadView(terminal, [download]);
  let fetcher: InstanceType<typeof Fetcher> | undefined;
  try {
    fetcher = new Fetcher({
      cache,
      credentials: { file: settings.weightCredentials, env: terminal.env, home: homedir() },
      onNote: (_, what) => view.note(download, what),
    });
    // The lease ends with the process.
    await fetchModel(fetcher, cache, [file], [download.tracker], new AbortController().signal);
    terminal.out(`${printable(join(filesDirectory(cache, [file]), file.path))}\n`);
    return EXIT.OK.code;
  } catch (error) {
    if (error instanceof WeightFault) throw new ExitError('WEIGHTS', printable(`${error.message} (${error.code})`));
    throw error;
  } finally {
    view.close();
    await fetcher?.close();
  }
}
