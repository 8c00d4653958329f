#pragma once

#include <memory>
#include <string>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/model/gguf_file.hpp"
#include "baton/model/model.hpp"
#include "baton/model/safetensors_file.hpp"
#include "json.hpp"
#include "plan_builder.hpp"
#include "spec.hpp"

namespace baton::model {

/// The opened weight files of a model; the plan's views point into them.
struct WeightFiles {
    std::vector<GgufFile> ggufs;  ///< the parts of one, in order; the first has the metadata
    std::vector<SafetensorsFile> shards;
    OwnedBytes owned;
};

/// A model found on disk, its headers read and its spec made.
struct Source {
    std::string dir;     ///< of a safetensors model; empty for GGUF
    std::string config;  ///< text of config.json; empty for GGUF
    ModelSpec spec;
    std::shared_ptr<WeightFiles> files;

    [[nodiscard]] bool is_gguf() const { return !files->ggufs.empty(); }
    [[nodiscard]] std::vector<const StoredTensor*> tensors() const;
    /// The plan; with `copy` false it is checked in full but must not be run (see PlanBuilder).
    [[nodiscard]] Expected<backend::Plan> plan(bool copy) const;
};

/// Finds and opens the model at `path`: a file, or a directory (see inspect_model).
[[nodiscard]] Expected<Source> open_source(const std::string& path, Weights weights = Weights::kChecked);

/// See ModelInfo::identity. `side_files` are the texts of the other files that shape what the model
/// does.
[[nodiscard]] Digest model_identity(const Source& source,
                                    const std::vector<std::string>& side_files);

}  // namespace baton::model
