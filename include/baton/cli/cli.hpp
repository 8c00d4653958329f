#pragma once

namespace baton::cli {

/// The `baton` command: reads the command line and runs what it names. Returns the exit code: 0 done, 1 failed, 2 usage.
int run(int argc, char** argv);

}  // namespace baton::cli
