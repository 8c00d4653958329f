#pragma once

#include <functional>
#include <string>
#include <vector>

#include "baton/cli/bench.hpp"
#include "cli/commands.hpp"

namespace CLI {
class App;
class Option;
}

/// What the command line fills. Three files know CLI11: cli.cpp declares what runs servers, client_options.cpp the clients
/// of a server, bench_options.cpp what measures.
namespace baton::cli {

/// Everything the commands fill; one of them runs.
struct Options {
    ServeOptions serve;
    LaunchOptions launch;
    ModelOptions model;
    LoginOptions login;
    TopOptions top;
    PullOptions pull;
    ChatOptions chat;
    BenchServeOptions bench_serve;
    BenchEngineOptions bench_engine;
    BenchHandoffOptions bench_handoff;
    SplitOptions split;
    Server server;
    bool doctor_json = false;
    std::string schema = "settings";  ///< that `config schema` prints
    std::vector<std::string> rest;
    std::function<int()> command;
};

/// Declares launch, list, chat and the other commands that talk to a server.
void add_client_commands(CLI::App& app, Options& options);
/// Declares bench and what is under it.
void add_bench(CLI::App& app, Options& options);
/// Declares `split` under doctor.
void add_split(CLI::App& doctor, Options& options);
/// Whether an option stands for true where no value follows it: `--thinking "a question"`.
[[nodiscard]] bool is_truth(const CLI::Option& option);
/// Where the server is and who asks.
void add_server(CLI::App& app, Options& options);

}  // namespace baton::cli
