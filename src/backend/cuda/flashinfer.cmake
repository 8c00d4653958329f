# FlashInfer's FA3 prefill kernels (headers of PyPI's flashinfer-python) as an oracle for our own: only the tests and the
# bench use them, since our kernel is the faster one (docs/decisions/008). Compiled for sm_90a alone, in about two minutes.
#   -DBATON_FLASHINFER_DIR=FOLDER      the package's data folder, the package, or a venv that it is installed in
#   -DBATON_WITH_FLASHINFER=AUTO|ON|OFF  AUTO: where the folder is given and complete; ON: or stop
set(BATON_WITH_FLASHINFER AUTO CACHE STRING "FlashInfer's prefill kernels in the GPU tests: AUTO, ON or OFF")
set_property(CACHE BATON_WITH_FLASHINFER PROPERTY STRINGS AUTO ON OFF)
set(BATON_FLASHINFER_DIR "" CACHE PATH "flashinfer-python: its data folder, the package, or a venv that has it")

if(BATON_WITH_FLASHINFER STREQUAL AUTO AND NOT BATON_FLASHINFER_DIR)
    return()
endif()
if(NOT BATON_WITH_FLASHINFER STREQUAL AUTO AND NOT BATON_WITH_FLASHINFER)
    return()
endif()

file(GLOB installed "${BATON_FLASHINFER_DIR}/lib/python3*/site-packages/flashinfer/data")
set(flashinfer_data "")
foreach(folder "${BATON_FLASHINFER_DIR}" "${BATON_FLASHINFER_DIR}/data" "${BATON_FLASHINFER_DIR}/flashinfer/data" ${installed})
    if(NOT flashinfer_data AND EXISTS "${folder}/include/flashinfer/attention/hopper/prefill_sm90.cuh"
       AND EXISTS "${folder}/cutlass/include/cute/tensor.hpp" AND IS_DIRECTORY "${folder}/cccl/libcudacxx/include")
        set(flashinfer_data "${folder}")
    endif()
endforeach()
if(NOT flashinfer_data)
    if(BATON_WITH_FLASHINFER STREQUAL AUTO)
        set(level WARNING)
    else()
        set(level FATAL_ERROR)
    endif()
    message(${level} "BATON_FLASHINFER_DIR='${BATON_FLASHINFER_DIR}': no flashinfer/data with include, cutlass and cccl there")
    return()
endif()
message(STATUS "FlashInfer's prefill kernels from ${flashinfer_data}")

add_library(baton_flashinfer OBJECT ${CMAKE_CURRENT_LIST_DIR}/flashinfer_prefill.cu)
set_target_properties(baton_flashinfer PROPERTIES CUDA_ARCHITECTURES OFF POSITION_INDEPENDENT_CODE ON)
target_compile_definitions(baton_flashinfer PUBLIC BATON_WITH_FLASHINFER PRIVATE NDEBUG)
# Its warnings are not ours. Its CCCL comes before the toolkit's, which lacks what it uses.
target_compile_options(baton_flashinfer PRIVATE "SHELL:-gencode=arch=compute_90a,code=sm_90a" -w --expt-relaxed-constexpr
    --expt-extended-lambda)
target_include_directories(baton_flashinfer PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
    ${flashinfer_data}/cccl/cub ${flashinfer_data}/cccl/libcudacxx/include ${flashinfer_data}/cccl/thrust ${flashinfer_data}/include
    ${flashinfer_data}/cutlass/include ${flashinfer_data}/cutlass/tools/util/include)
