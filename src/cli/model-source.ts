/** Whether the model file or repository of the settings is there, with a message for each way it can be mistaken. */
import { basename, relative } from 'node:path';
import { ExitError } from '../config/exit-codes.ts';
import { nearestName } from '../config/nearest.ts';
import type { ServerSettings } from '../config/settings.ts';
import { entryExists, fileKind } from '../repository/files.ts';
import { singleModel } from '../repository/repository.ts';

/**
 * Blocks on the file system.
 *
 * @param commands names of commands, since a mistyped one is taken for a model file
 * @throws ExitError USAGE or MODEL
 */
export function checkModelSource(settings: ServerSettings, cwd: string, commands: readonly string[]): void {
  const { model, modelRepository, origins } = settings;
  if (modelRepository !== undefined) {
    const shown = shownPath(modelRepository, cwd);
    const found = fileKind(modelRepository);
    if ('problem' in found) throw new ExitError('MODEL', `model repository ${shown} ${found.problem}`);
    if (found.kind !== 'directory') {
      const hint = modelRepository.endsWith('.onnx') ? `to serve this one file: run ${shown}` : undefined;
      throw new ExitError('MODEL', `model repository ${shown} is not a directory`, { hint });
    }
  }
  if (model !== undefined) {
    const shown = shownPath(model, cwd);
    const word = basename(model);
    if (origins.model.source === 'flag' && shown === word && !entryExists(model)) {
      const meant = nearestName(word, commands);
      if (meant !== undefined) throw new ExitError('USAGE', `unknown command "${word}"; did you mean "${meant}"?`);
    }
    const { problem } = singleModel(model);
    if (problem !== undefined) throw new ExitError('MODEL', `${shown} ${problem}`);
  }
}

/** The shorter of the absolute and the relative path. */
export function shownPath(path: string, cwd: string): string {
  const short = relative(cwd, path);
  return short === '' || short.startsWith('..') ? path : short;
}
