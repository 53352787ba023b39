-- Radiographs go to the gateway; its answers are of other modalities and stay here.
function OnStoredInstance(id, tags)
  if tags.Modality == 'CR' or tags.Modality == 'DX' then
    SendToModality(id, 'medclip')
  end
end
