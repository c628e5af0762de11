/** `run`: serve a model file or a repository until told to stop. Everything after the settings is the supervisor's. */
import { resolveSettings } from '../config/settings-resolve.ts';
import type { Command } from './command.ts';
import { checkModelSource } from './model-source.ts';
import { settingFlags, settingOptions } from './setting-options.ts';

/** @param commands names of the others, since one mistyped looks like a model file */
export function runCommand(commands: readonly string[]): Command {
  return {
    name: 'run',
    usage: ['run [model]', '$0'],
    describe: 'Serve a model file or a repository of models (the default command)',
    positionals: { model: { describe: 'The .onnx file to serve; or give --model-repository' } },
    options: settingOptions(),
    examples: [
      ['mnist.onnx', 'Serve one file as the model "mnist"'],
      ['--model-repository models --http-port 9000', 'Serve every model in a directory'],
      ['run mnist.onnx --device cuda:0 --device cuda:1', 'Serve from two GPUs'],
    ],
    run: async (args, terminal) => {
      const { settings, warnings } = resolveSettings({
        flags: settingFlags(args),
        env: terminal.env,
        cwd: terminal.cwd,
      });
      for (const warning of warnings) terminal.err(`warning: ${warning}\n`);
      checkModelSource(settings, terminal.cwd, commands);
      // Imported here so that no other command loads the server.
      const { runServer } = await import('../supervisor/supervisor.ts');
      return runServer(settings);
    },
  };
}
