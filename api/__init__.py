"""The service: routes over `medclip_dcl.tasks`."""
