"""The event loops of pytest-asyncio as fixtures, one per scope. `plugin.py` imports this module if pytest-asyncio is active."""

from __future__ import annotations

import asyncio

import pytest_asyncio


@pytest_asyncio.fixture(loop_scope="function", name="strandline_function_loop")
async def function_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest_asyncio.fixture(loop_scope="class", name="strandline_class_loop")
async def class_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest_asyncio.fixture(loop_scope="module", name="strandline_module_loop")
async def module_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest_asyncio.fixture(loop_scope="package", name="strandline_package_loop")
async def package_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


@pytest_asyncio.fixture(loop_scope="session", scope="session", name="strandline_session_loop")
async def session_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
