/// The one binary: supervisor, worker, replica and client commands.
#include "baton/cli/cli.hpp"

int main(int argc, char** argv) { return baton::cli::run(argc, argv); }
